"""Default groups that the same processes make one after the other, in the same or another order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from ncclscope.engine.verdict import Verdict
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes import process_groups

SIZE = 4


class Group:
    """In place of torch's ``ProcessGroup``."""

    group_name, group_desc = "0", "default_pg"

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "gloo"

    def get_group_store(self) -> Any:
        return SimpleNamespace(port=29500)


def run_process(
    directory: Path, patch: pytest.MonkeyPatch, rank: int, worlds: Sequence[tuple[int, int, int]]
) -> list[str]:
    """Let a process make worlds.

    Args:
        directory: Where its ring goes.
        patch: Changes the probe.
        rank: Its rank in the first world.
        worlds: For each, its rank there, the size, and its number of calls.

    Returns:
        The keys of their communicators.
    """
    details = {"host": "node", "pid": 100 + rank, "boot_id": ""}
    tracer = Tracer(directory, rank=-1, world_size=0, heartbeat=False, details=details)
    world = SimpleNamespace(pg_backend_config={}, default_pg=None)
    patch.setattr(process_groups, "c10d", lambda: SimpleNamespace(_world=world))
    patch.setattr(process_groups.session, "current", lambda: tracer)
    patch.setattr(process_groups, "_worlds", process_groups._Worlds())
    keys = []
    for place, size, calls in worlds:
        process_groups.begin_world()
        process_groups.join_world(place, size)
        group = Group(place, size)
        comm = process_groups.declare(group, range(size)).comm
        assert comm is not None
        keys.append(comm.key)
        for _ in range(calls):
            done = tracer.record(comm, "all_reduce", shape=(size,), dtype="float32", redop="sum")
            tracer.complete(done)
    tracer.close()
    return keys


def verdict_on(directory: Path) -> Verdict:
    return diagnose(open_run(directory))


def test_a_second_world_is_not_the_first(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 left the first one with an exception, before any call or after some."""
    keys = [
        run_process(
            rings, monkeypatch, rank, [(rank, SIZE, 0 if rank == 1 else 3), (rank, SIZE, 5)]
        )
        for rank in range(SIZE)
    ]

    assert keys[1:] == keys[:-1]
    assert len(set(keys[0])) == 2
    found = verdict_on(rings).run.by_rank[1]
    assert [log.calls for log in found.logs.values()] == [0, 5]


def test_ranks_that_a_second_world_numbers_anew_are_those_of_the_job(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(SIZE):
        second = [(rank - 1, SIZE - 1, 5)] if rank else []
        run_process(rings, monkeypatch, rank, [(rank, SIZE, 3), *second])

    verdict = verdict_on(rings)

    assert (verdict.status, verdict.run.expected) == ("ok", SIZE)
    assert {comm.ranks for comm in verdict.run.communicators.values()} == {(0, 1, 2, 3), (1, 2, 3)}


def test_a_larger_world_gives_a_process_its_rank(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(SIZE):
        run_process(rings, monkeypatch, rank, [(rank % 2, 2, 0), (rank, SIZE, 3)])

    run = verdict_on(rings).run

    assert (run.expected, [rank.rank for rank in run.ranks]) == (SIZE, [*range(SIZE)])
