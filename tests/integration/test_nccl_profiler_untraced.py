"""A process without Python that cannot make a ring says so, as one with Python does."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ncclscope
from ncclscope.commands.new_rings import Reports
from ncclscope.ring import tombstone
from tests.support.full_disks import fill
from tests.support.nccl_programs import Built, Program, call, comm

WORLD = 4
WHY = "files may not be as large as a ring (ulimit -f)"
NO_FILE, A_PAGE, NO_RING = 0, tombstone.PAGE, 1 << 20
"""Largest files that a process may write."""


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Where files go for which a directory of this name has no room."""
    place = Path("/dev/shm", f"ncclscope-{os.getuid()}", f"untraced-{os.getpid()}")
    yield place
    shutil.rmtree(place, ignore_errors=True)


def play(built: Built, limits: dict[int, int], **variables: object) -> None:
    """Run ranks that wait for each other in their last call, and are killed there.

    Args:
        built: What was compiled.
        limits: Largest files that a rank may write, by rank.
        **variables: The programs' environment.
    """
    programs = [Program(built, variables) for _ in range(WORLD)]
    for rank, program in enumerate(programs):
        if rank in limits:
            resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (limits[rank],) * 2)
        program.send(f"open {built.plugin} 5", comm(rank, WORLD), call(), call(), "kill")
    for rank, program in enumerate(programs):
        status, complained = program.end()
        assert status == -9
        assert bool(complained) == (rank in limits)


@pytest.mark.parametrize("limit", [A_PAGE, NO_RING])
def test_ranks_without_a_ring_are_known_and_keep_the_verdict_open(
    nccl: Built, rings: Path, limit: int
) -> None:
    play(nccl, {1: limit, 2: limit}, NCCLSCOPE_DIR=rings)

    run = ncclscope.open_run(rings)
    assert [rank.rank for rank in run.ranks] == [0, 3]
    assert [(one.rank, one.world_size, one.details["untraced"]) for one in run.untraced] == [
        *((rank, WORLD, WHY) for rank in (1, 2))
    ]
    verdict = ncclscope.diagnose(run)
    assert (verdict.status, verdict.cause) == ("incomplete", None)


def test_a_page_is_in_the_format_of_the_python_recorder(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_RUN": 'r"\u00e9' * 300})
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (A_PAGE, A_PAGE))
    program.ask(f"open {nccl.plugin} 5", comm(3), call(), comm(3, at=1, hash=2), call(at=1))

    (path,) = rings.glob("*.untraced")
    page = path.read_bytes()
    about = json.loads(page)
    assert (len(page), page[-1:]) == (tombstone.PAGE, b"\n")
    assert about["ncclscope_untraced"] == tombstone.VERSION
    assert (about["final"], about["rank"], about["pid"]) == (True, 3, program.pid)
    own = {"host", "boot_id", "pid_namespace", "start_ticks", "parent", "started_ns", "time_ns"}
    assert own <= about.keys()
    (one,) = ncclscope.open_run(rings).untraced
    assert one.alive
    assert program.end()[0] == 0


def test_without_room_for_a_page_the_launcher_hears_it(nccl: Built, rings: Path) -> None:
    reports = Reports(rings)
    try:
        play(nccl, {2: NO_FILE}, NCCLSCOPE_DIR=rings, NCCLSCOPE_REPORTS=reports.name)
        assert not list(rings.glob("*.untraced"))
        reports.take()
    finally:
        reports.close()

    assert [one.rank for one in ncclscope.open_run(rings).untraced] == [2]


def test_without_a_launcher_that_listens_the_program_goes_on(nccl: Built, rings: Path) -> None:
    name = f"ncclscope-{os.getpid()}-nobody"
    play(nccl, {2: NO_FILE}, NCCLSCOPE_DIR=rings, NCCLSCOPE_REPORTS=name)

    assert not ncclscope.open_run(rings).untraced


def test_a_full_directory_points_to_the_page_elsewhere(
    nccl: Built, small: Path, elsewhere: Path
) -> None:
    fill(small)
    asked = small / elsewhere.name
    program = Program(nccl, {"NCCLSCOPE_DIR": asked})
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (A_PAGE, A_PAGE))
    program.ask(f"open {nccl.plugin} 5", comm(1), call())

    assert [path.suffix for path in elsewhere.iterdir()] == [".untraced"]
    assert [one.rank for one in ncclscope.open_run(asked).untraced] == [1]
    assert program.end()[0] == 0


def test_nothing_is_left_where_the_ring_is_made(
    nccl: Built, small: Path, rings: Path, elsewhere: Path
) -> None:
    fill(small)
    for asked in (rings, small / elsewhere.name):
        program = Program(nccl, {"NCCLSCOPE_DIR": asked})
        program.ask(f"open {nccl.plugin} 5", comm(0), call())
        assert program.end() == (0, "")

    left = [path.name for place in (rings, elsewhere) for path in place.iterdir()]
    assert len(left) == 2
    assert all(name.endswith(".ring") for name in left)
    names = [path.name for path in (small / elsewhere.name).iterdir()]
    assert all(name.endswith(".ring.moved") for name in names)
