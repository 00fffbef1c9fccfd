"""A group of a trainer and processes of other worlds, as RL frameworks send weights in."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from tests.integration.c10d_ranks import calls, join, main, meeting, start

pytest.importorskip("torch")

SYNC = "pg-weights"
LEAVES = "leaves_out"


def join_sync(place: int, size: int = 4) -> Any:
    """Join the group as the frameworks do, which pass no ranks and a name of their own."""
    from torch.distributed import FileStore, PrefixStore, distributed_c10d

    store = PrefixStore("weights", FileStore(os.environ["SYNC"], size))
    group, _ = distributed_c10d._new_process_group_helper(
        size,
        place,
        [],
        distributed_c10d.Backend("gloo"),
        store,
        group_name="weights",
        timeout=timedelta(seconds=100),
    )
    distributed_c10d._world.pg_group_ranks[group] = {one: one for one in range(size)}
    return group


def trains(rank: int) -> None:
    import torch

    dist = join()
    group = join_sync(0) if rank == 0 else None
    dist.all_reduce(torch.ones(2))
    if group is not None:
        dist.broadcast(torch.ones(3), 0, group=group)
        dist.broadcast(torch.ones(4), 0, group=group)
    dist.all_reduce(torch.ones(2))


def generates(rank: int) -> None:
    import torch

    dist = join()
    group = join_sync(1 + rank)
    dist.all_reduce(torch.ones(5))
    for size in (3, 4):
        if rank == 0 or size == 3 or LEAVES not in os.environ:
            dist.broadcast(torch.ones(size), 0, group=group)


def has_no_world(_rank: int) -> None:
    import torch
    import torch.distributed as dist

    group = join_sync(3)
    for size in (3, 4):
        dist.broadcast(torch.ones(size), 0, group=group)


def run(rings: Path, **environment: str) -> list[str]:
    """Run two trainers, two workers, and a process that has no world; return what failed."""
    shared = {"SYNC": str(rings / "sync"), **environment}
    jobs = []
    for name, function, size in (
        ("t", "trains", 2),
        ("g", "generates", 2),
        ("n", "has_no_world", 1),
    ):
        own = {**meeting(rings, size), "MEETING_POINT": str(rings / f"store-{name}")}
        for rank in range(size):
            number = {"RANK": str(rank)} if size > 1 else {}
            jobs.append(start(__file__, function, {**shared, **own, **number}))
    outputs = [job.communicate(timeout=100)[0] for job in jobs]
    return [output for job, output in zip(jobs, outputs, strict=True) if job.returncode]


def test_members_of_other_worlds_have_numbers_of_their_own(tmp_path: Path) -> None:
    assert run(tmp_path) == []

    found = open_run(tmp_path)

    assert found.expected == 5
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3, 4]
    members = {comm.label: comm.ranks for comm in found.communicators.values()}
    assert sorted(c.ranks for c in found.communicators.values()) == [(0, 1), (0, 2, 3, 4), (2, 3)]
    assert members[SYNC] == (0, 2, 3, 4)
    assert [call.shape for call in calls(found.by_rank[4], SYNC)] == [(3,), (4,)]
    assert diagnose(found).status == "ok"


def test_the_worker_that_leaves_out_a_broadcast_is_named(tmp_path: Path) -> None:
    run(tmp_path, **{LEAVES: "1"})

    cause = diagnose(open_run(tmp_path)).cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.seq) == ((3,), 2)
    assert cause.comm is not None
    assert cause.comm.label == SYNC


if __name__ == "__main__":
    main({one.__name__: one for one in (trains, generates, has_no_world)})
