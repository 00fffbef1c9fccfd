"""NCCL loads one profiler plugin; ours passes everything on to the one configured before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

import ncclscope
from tests.support.nccl_programs import MASK, MASK_OF_4, VERSIONS, Built, Program, call, comm

COLL, P2P, GROUP_API, COLL_API, P2P_API = 1, 2, 8, 9, 10
"""Places of the types of events in the other plugin's log."""
EVERYTHING = 0xFFFF


class Seen(NamedTuple):
    """What the other plugin wrote when the program ended."""

    started: list[int]
    stopped: int
    states: int
    finalized: int
    bad: int


class Chain:
    """A program with another plugin behind ours."""

    def __init__(self, built: Built, folder: Path, version: int, **variables: object) -> None:
        self._log = folder / "next.log"
        self.plugin = built.next_plugin(version)
        given = {"NCCLSCOPE_NEXT_PROFILER": self.plugin, "NEXT_PLUGIN_LOG": self._log}
        self.program = Program(built, {**given, **variables})

    def end(self, *lines: str) -> Seen:
        assert self.program.end(*lines) == (0, "")
        words = self._log.read_text().split()
        *counts, mask = [int(word) for word in words if word.lstrip("-").isdecimal()]
        del mask
        return Seen(counts[:16], *counts[16:])


def _steps() -> list[str]:
    transfers = ["start", "send 0 8 ncclInt8 1", "recv 0 8 ncclInt8 1", "end"]
    return [call(), call("AllGather"), *transfers, "start", call(), call(), "end", "final 0"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
def test_both_see_the_job(
    nccl: Built, rings: Path, tmp_path: Path, version: int, other: int
) -> None:
    chain = Chain(nccl, tmp_path, other, NCCLSCOPE_DIR=rings)
    own = MASK_OF_4 if version == 4 else MASK
    theirs = 0x6 if other <= version else 0  # NCCL itself would not load a later one either
    _, mask = chain.program.ask(f"open {nccl.plugin} {version}", comm(0, 2))
    assert mask == own | theirs
    if not theirs:
        chain.program.end(*_steps())
    else:
        seen = chain.end(*_steps())
        assert (seen.started[COLL], seen.started[P2P]) == (4, 2)
        assert (seen.finalized, seen.bad) == (1, 0)
        assert seen.stopped == sum(seen.started)
    (rank,) = ncclscope.open_run(rings).ranks
    assert [log.calls for log in rank.logs.values()] == [4]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0, {}),
        (1 << COLL_API, {GROUP_API: 4, COLL_API: 4}),
        (1 << P2P_API, {GROUP_API: 4, P2P_API: 2}),
        (1 << GROUP_API, {GROUP_API: 4}),
        (1 << COLL, {0: 4, COLL: 4, GROUP_API: 4, COLL_API: 4}),
        (EVERYTHING, {0: 4, COLL: 4, P2P: 2, GROUP_API: 4, COLL_API: 4, P2P_API: 2}),
    ],
)
def test_the_other_receives_what_nccl_would_send_it_alone(
    nccl: Built, rings: Path, tmp_path: Path, mask: int, expected: dict[int, int]
) -> None:
    results = []
    for variables in ({"NCCLSCOPE_DIR": rings}, {}):
        chain = Chain(nccl, tmp_path, 5, NEXT_PLUGIN_MASK=mask, **variables)
        seen = chain.end(f"open {nccl.plugin} 5", comm(0, 2), *_steps())
        found = {place: count for place, count in enumerate(seen.started) if count}
        assert seen.bad == 0
        results.append((found, seen.stopped, seen.states))
    # The same with tracing off, where ours asks for nothing.
    assert results[0] == results[1]
    assert results[0][0] == expected


def test_the_other_alone_sees_the_same(nccl: Built, tmp_path: Path) -> None:
    log = tmp_path / "alone.log"
    program = Program(nccl, {"NEXT_PLUGIN_LOG": log})
    program.end(f"open {nccl.next_plugin(5)} 5", comm(0, 2), *_steps())
    chain = Chain(nccl, tmp_path, 5, NCCLSCOPE_DIR=tmp_path / "rings")
    chain.end(f"open {nccl.plugin} 5", comm(0, 2), *_steps())
    alone, behind = (path.read_text().rpartition(" mask")[0] for path in (log, chain._log))
    assert alone == behind


def test_a_name_is_found_as_nccl_finds_it(nccl: Built, rings: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join(
        [str(nccl.next_plugin(5).parent), os.environ.get("LD_LIBRARY_PATH", "")]
    )
    chain = Chain(
        nccl,
        tmp_path,
        5,
        NCCLSCOPE_DIR=rings,
        NCCLSCOPE_NEXT_PROFILER="next5",
        LD_LIBRARY_PATH=paths,
    )
    assert chain.end(f"open {nccl.plugin} 5", comm(0, 2), *_steps()).started[COLL] == 4


@pytest.mark.parametrize(
    "named", ["none", "/nowhere/libnccl-profiler.so", "unknown-name", "STATIC_PLUGIN", "itself"]
)
def test_without_a_plugin_behind_it_ours_works_alone(nccl: Built, rings: Path, named: str) -> None:
    variables = {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_NEXT_PROFILER": named}
    if named == "itself":
        variables["NCCLSCOPE_NEXT_PROFILER"] = nccl.plugin
    program = Program(nccl, variables)
    assert program.ask(f"open {nccl.plugin} 5", comm(0, 2))[-1] == MASK
    assert program.end(*_steps()) == (0, "")
    assert ncclscope.open_run(rings).ranks[0].records == 6


def test_a_plugin_that_fails_to_start_is_left_out(nccl: Built, rings: Path, tmp_path: Path) -> None:
    chain = Chain(nccl, tmp_path, 5, NCCLSCOPE_DIR=rings, NEXT_PLUGIN_FAILS=1)
    assert chain.program.ask(f"open {nccl.plugin} 5", comm(0, 2))[-1] == MASK
    assert chain.program.end(*_steps()) == (0, "")
    assert ncclscope.open_run(rings).ranks[0].records == 6
