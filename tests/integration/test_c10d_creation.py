"""Four gloo ranks that do not create the same groups in the same order, and some that do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.errors import NcclscopeError
from ncclscope.model import Run
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks, start

pytest.importorskip("torch")

SIZE = 4
DEADLINE = 100.0
ALL = [0, 1, 2, 3]
PAIRS = [[0, 1], [2, 3], [0, 2], [1, 3]]
GROUPS = "world/groups"


def create(rank: int, groups: Sequence[Sequence[int]]) -> None:
    """Create groups after a first call in common, and post another call then."""
    import torch

    dist = join()
    dist.all_reduce(torch.ones(1))
    for group in groups:
        dist.new_group(list(group))
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


def all_alike(rank: int) -> None:
    create(rank, [*PAIRS, ALL])


def another_order(rank: int) -> None:
    # The group of all comes first on rank 3: there is nobody who would meet it.
    create(rank, [ALL, [0, 1, 2]] if rank == 3 else [[0, 1, 2], ALL])


def group_of_others_left_out(rank: int) -> None:
    create(rank, [[0, 1], ALL] if rank == 3 else [[0, 1], [0, 1, 2], ALL])


def own_group_left_out(rank: int) -> None:
    create(rank, [[0, 1]] if rank == 3 else [[0, 1], [2, 3]])


def never_comes(rank: int) -> None:
    if rank != 0:
        create(rank, [[0, 1], ALL])
    join().all_reduce(__import__("torch").ones(1))
    with open(os.environ["MEETING_POINT"] + ".pipe") as pipe:
        pipe.read()  # until it is killed


def local_groups(rank: int) -> None:
    dist = join()
    for group in (*PAIRS, [0, 1]):
        # The members alone call it, and torch lets others do it, too.
        if rank in group or group == [1, 3]:
            dist.new_group(group, use_local_synchronization=True)
    dist.barrier()
    dist.destroy_process_group()


def local_group_left_out(rank: int) -> None:
    import torch

    dist = join()
    for group in ([0, 1], [2, 3]):
        if rank in group and rank != 3:
            dist.new_group(group, use_local_synchronization=True)
    dist.all_reduce(torch.ones(2))


def created(run: Run) -> dict[int, int]:
    """Return how many groups each rank has begun to create."""
    return {
        rank.rank: sum(log.calls for log in rank.logs.values() if log.communicator.creates_groups)
        for rank in run.ranks
    }


def hang(
    function: str,
    rings: Path,
    begun: Sequence[int],
    posted: Sequence[int],
    or_further: int | None = None,
) -> list[Verdict]:
    """Run ranks until all have come as far as they can, and kill them then.

    Args:
        function: What they run.
        rings: Where their rings go.
        begun: Groups that each rank begins to create.
        posted: Calls that each rank posts on the world.
        or_further: A rank that may come further than that.

    Returns:
        The verdict on the ranks while they live and may just be under way, and afterwards.
    """
    environment = {
        "WORLD_SIZE": str(SIZE),
        "MEETING_POINT": str(rings / "store"),
        "NCCLSCOPE_DIR": str(rings),
    }
    os.mkfifo(rings / "store.pipe")
    processes = [start(__file__, function, {**environment, "RANK": str(r)}) for r in range(SIZE)]
    try:
        deadline = time.monotonic() + DEADLINE
        while not _come_as_far(rings, begun, posted, or_further):
            assert time.monotonic() < deadline, f"{function} does not come to where it hangs"
            time.sleep(0.1)
        living = diagnose(open_run(rings), live_stall_seconds=1e6)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()
    return [living, diagnose(open_run(rings), stall_seconds=0.0)]


def _come_as_far(
    rings: Path, begun: Sequence[int], posted: Sequence[int], or_further: int | None
) -> bool:
    try:
        run = open_run(rings)
    except NcclscopeError:
        return False
    if len(run.ranks) < SIZE:
        return False
    came = [(created(run)[rank.rank], len(calls(rank)) if rank.logs else 0) for rank in run.ranks]
    return all(
        here >= there if rank == or_further else here == there
        for rank, (here, there) in enumerate(
            zip(came, zip(begun, posted, strict=True), strict=True)
        )
    )


def test_groups_created_alike_are_recorded_and_agree(rings: Path) -> None:
    run = run_ranks(__file__, "all_alike", rings, size=SIZE)

    verdict = diagnose(run, stall_seconds=0.0)
    assert verdict.status == "ok"
    assert not verdict.findings
    for rank in run.ranks:
        assert [fields(one, "op", "sizes", "dtype") for one in calls(rank, GROUPS)] == [
            ("new_group", tuple(group), "gloo") for group in [*PAIRS, ALL]
        ]
        assert all(one.state.word == "completed" for one in calls(rank, GROUPS))
        assert all("create" in str(one.site) for one in calls(rank, GROUPS))
        assert [one.seq for one in calls(rank)] == [1, 2]
    (comm,) = [comm for comm in run.communicators.values() if comm.creates_groups]
    assert (comm.label, comm.ranks, comm.backend) == (GROUPS, tuple(ALL), "store")
    assert not any(GROUPS in row.cells for row in verdict.table)


def test_groups_that_only_members_create_are_distinguished(rings: Path) -> None:
    run = run_ranks(__file__, "local_groups", rings, size=SIZE)

    assert diagnose(run, stall_seconds=0.0).status == "ok"
    assert created(run) == {0: 3, 1: 3, 2: 2, 3: 2}
    assert not any(comm.label == GROUPS for comm in run.communicators.values())


@pytest.mark.parametrize(
    ("function", "begun", "posted", "kind", "words"),
    [
        ("own_group_left_out", [2, 2, 2, 1], [2, 2, 1, 2], "not_joined", "of ranks 2 3 (gloo)"),
        ("local_group_left_out", [1, 1, 1, 0], [1, 1, 0, 1], "not_joined", "of ranks 2 3 (gloo)"),
    ],
)
def test_rank_that_creates_something_else_is_named(
    rings: Path, function: str, begun: list[int], posted: list[int], kind: str, words: str
) -> None:
    _, verdict = hang(function, rings, begun, posted)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == (kind, (3,))
    assert verdict.cause.confidence == "likely"
    assert words in verdict.cause.summary


@pytest.mark.parametrize(
    ("function", "begun"),
    [("another_order", [2, 2, 2, 1]), ("group_of_others_left_out", [3, 3, 3, 2])],
)
def test_rank_that_creates_in_another_order_is_named(
    rings: Path, function: str, begun: list[int]
) -> None:
    """Under one number gloo may join ranks of different groups; the diverging rank may go on."""
    _, verdict = hang(function, rings, begun, [1] * 4, or_further=3)

    assert verdict.cause is not None
    assert verdict.cause.kind in ("missing_call", "op_mismatch")
    assert verdict.cause.diverging_ranks == (3,)
    assert "new_group of ranks 0-2 (gloo)" in verdict.cause.summary


def test_rank_that_does_not_come_is_late_first_and_named_then(rings: Path) -> None:
    living, verdict = hang("never_comes", rings, [0, 1, 2, 2], [1] * 4)

    assert living.status == "ok"
    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (0,))


if __name__ == "__main__":
    main(globals())
