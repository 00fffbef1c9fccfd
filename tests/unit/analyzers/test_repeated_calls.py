"""Calls that one rank posted once more, or left out, as the whole job's streams and sizes show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ncclscope.engine.verdict import Verdict
from ncclscope.engine.waits.waits import Waits
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
Story = tuple[str, tuple[int, ...], str, int | None]


def story(verdict: Verdict) -> Story:
    cause = verdict.cause
    assert cause is not None, verdict.summary
    label = "" if cause.comm is None else cause.comm.label
    return cause.kind, cause.diverging_ranks, label, cause.seq


def gather(cluster: Cluster, ranks: list[int], *, done: bool = True) -> None:
    cluster.post(ranks, "dp:0", "all_gather", shape=(8, 2), site="train.py:20 step", done=done)


def reduce(cluster: Cluster, ranks: list[int], *, done: bool = True) -> None:
    cluster.post(ranks, "tp:0", shape=(4, 2), site="train.py:30 step", done=done)


def test_a_call_that_one_rank_repeats_while_its_peers_go_on_is_extra(
    cluster_of: ClusterOf,
) -> None:
    """Rank 2 was said to stay away from its peers' call, which follows from it."""
    cluster = cluster_of(4)
    everybody = [*cluster.everybody]
    for _ in range(3):
        gather(cluster, everybody)
        reduce(cluster, everybody)
        cluster.post(everybody, "tp:0", "barrier", site="train.py:40 step")
    gather(cluster, everybody)
    gather(cluster, [2], done=False)
    reduce(cluster, [0, 1, 3], done=False)

    assert story(cluster.verdict()) == ("extra_call", (2,), "dp:0", 5)


def test_a_rank_that_kept_the_group_that_its_peers_replaced(cluster_of: ClusterOf) -> None:
    """It is in the first call of a step, not in all three; its peers are at the same line."""
    cluster = cluster_of(4)

    def step(ranks: list[int], label: str, calls: int = 3, *, done: bool = True) -> None:
        for number in range(calls):
            op = "barrier" if number == 2 else "all_reduce"
            cluster.post(ranks, label, op, site=f"train.py:{20 + number} step", done=done)

    everybody = [*cluster.everybody]
    for _ in range(5):
        step(everybody, "mesh:0")
    for _ in range(5):
        step(everybody, "mesh:1")
    step([3], "mesh:1", 1, done=False)
    step([0, 1, 2], "mesh:2", 1, done=False)

    found = cluster.verdict().cause
    assert found is not None
    assert (found.kind, found.diverging_ranks, found.extent) == ("comm_swap", (3,), 1)
    assert found.comm is not None
    assert found.peers is not None
    assert (found.comm.label, found.peers.comm[:6]) == ("mesh:1", "mesh:2")


def test_a_rank_that_left_out_a_call_of_the_round_is_not_told_to_repeat_one(
    cluster_of: ClusterOf,
) -> None:
    """Rank 2 posts the next round's call, one call on, and the last such is two calls ago."""
    cluster = cluster_of(4)
    everybody = [*cluster.everybody]
    for _ in range(3):
        gather(cluster, everybody)
        reduce(cluster, everybody)
    gather(cluster, [2], done=False)
    reduce(cluster, [0, 1, 3], done=False)

    assert story(cluster.verdict())[1] != (0, 1, 3)
    assert story(cluster.verdict())[0] != "extra_call" or story(cluster.verdict())[1] != (2,)


@pytest.mark.parametrize(("rows", "kind"), [(60, "missing_call"), (40, "extra_call")])
def test_sizes_that_grow_from_round_to_round_show_in_which_a_rank_is(
    cluster_of: ClusterOf, rows: int, kind: str
) -> None:
    """It was reported as one call of another size: of the next round, or of the last one again."""
    cluster = cluster_of(4)
    for number in range(4):
        shape = (10 * (number + 1), 2)
        cluster.post(cluster.everybody, "world", shape=shape, site="train.py:5 step")
        cluster.post(cluster.everybody, "world", "barrier", site="train.py:9 step")
    for ranks, size in (([0, 1, 3], 50), ([2], rows)):
        cluster.post(ranks, "world", shape=(size, 2), site="train.py:5 step", done=False)

    verdict = cluster.verdict()

    assert story(verdict) == (kind, (2,), "world", 9)
    assert verdict.cause is not None
    assert verdict.cause.confidence == "likely"


def test_another_size_than_any_round_has_is_a_mismatch(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for number in range(4):
        shape = (10 * (number + 1), 2)
        cluster.post(cluster.everybody, "world", shape=shape, site="train.py:5 step")
        cluster.post(cluster.everybody, "world", "barrier", site="train.py:9 step")
    for ranks, size in (([0, 1, 3], 50), ([2], 57)):
        cluster.post(ranks, "world", shape=(size, 2), site="train.py:5 step", done=False)

    assert story(cluster.verdict())[:2] == ("size_mismatch", (2,))


def test_calls_of_one_kind_from_other_lines_are_in_no_other_order(cluster_of: ClusterOf) -> None:
    """Rank 2 posts an extra one from a line of its own; its peers' comes after the next call."""
    cluster = cluster_of(4)

    def post(ranks: list[int], op: str, rows: int, line: int) -> None:
        site = f"train.py:{line} step"
        cluster.post(ranks, "world", op, shape=(rows, 2), site=site, done=False, backend="nccl")

    for number in range(3):
        post([*cluster.everybody], "all_gather", 8, 5)
        if number < 2:
            post([*cluster.everybody], "all_reduce", 10 + number, 7)
    post([2], "all_gather", 8, 6)
    post([*cluster.everybody], "all_reduce", 12, 7)
    post([0, 1, 3], "all_gather", 8, 5)

    assert story(cluster.verdict())[0] != "op_mismatch"


def test_a_host_that_waited_for_a_later_call_did_not_wait_for_the_one_before(
    cluster_of: ClusterOf,
) -> None:
    """On NCCL the gather before the last barrier was taken for the call in which all ranks are."""
    cluster = cluster_of(4)
    everybody = cluster.everybody
    cluster.post(everybody, "node:0", "all_to_all", shape=(8, 2), backend="nccl")
    cluster.post(everybody, "node:0", "all_gather", done=False, backend="nccl")
    cluster.post(everybody, "world", backend="nccl")
    cluster.post([0, 1, 3], "world", done=False, backend="nccl")

    waits = Waits(cluster.run()).pending_calls

    assert {rank: (one.comm.label, one.absent) for rank, one in waits.items()} == dict.fromkeys(
        (0, 1, 3), ("world", (2,))
    )


def test_a_rank_whose_peers_came_to_a_new_group_has_not_repeated_a_call(
    cluster_of: ClusterOf,
) -> None:
    """Its call is the one that follows in each round; that of its peers is new."""
    cluster = cluster_of(4)
    for _ in range(7):
        cluster.post(range(4), "world", site="train.py:14 step", backend="nccl")
    peers = [0, 2, 3]
    cluster.post(peers, "writers", site="train.py:19 save", done=False, backend="nccl")
    cluster.post([1], "world", site="train.py:14 step", done=False, backend="nccl")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (1,))
