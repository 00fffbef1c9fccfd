"""A majority that breaks a pattern which all had repeated is no proof against the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]

SUM, MEET = "train.py:7 step", "train.py:9 step"


def rounds(cluster: Cluster, count: int = 10) -> None:
    for _ in range(count):
        cluster.post(cluster.everybody, "world", "all_reduce", site=SUM)
        cluster.post(cluster.everybody, "world", "barrier", shape=(), dtype=None, site=MEET)


def last(cluster: Cluster, ranks: list[int], op: str) -> None:
    if op == "barrier":
        cluster.post(ranks, "world", op, shape=(), dtype=None, site=MEET, done=False)
    else:
        cluster.post(ranks, "world", op, site=SUM, done=False)


@pytest.mark.parametrize("size", [3, 4])
def test_the_rank_that_keeps_the_pattern_is_not_named(cluster_of: ClusterOf, size: int) -> None:
    cluster = cluster_of(size)
    rounds(cluster)
    last(cluster, [*range(1, size)], "barrier")
    last(cluster, [0], "all_reduce")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.confidence, cause.seq) == ("missing_call", "ambiguous", 21)
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), tuple(range(size)))
    assert any("broke the pattern of calls that all ranks had" in one for one in cause.inferred)


def test_the_rank_that_breaks_it_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    rounds(cluster)
    last(cluster, [1, 2], "all_reduce")
    last(cluster, [0], "barrier")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("missing_call", (0,))


def test_without_a_pattern_the_majority_counts(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    for op in ("all_reduce", "barrier", "barrier", "all_reduce", "all_reduce", "barrier"):
        cluster.post(cluster.everybody, "world", op, site=SUM if op == "all_reduce" else MEET)
    last(cluster, [1, 2], "barrier")
    last(cluster, [0], "all_reduce")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("op_mismatch", (0,))


@pytest.mark.parametrize("skipping", [[0], [1, 2]])
def test_lines_show_which_side_broke_it(cluster_of: ClusterOf, skipping: list[int]) -> None:
    """All calls are alike; only their lines alternate."""
    cluster = cluster_of(3)
    for number in range(40):
        site = (SUM, MEET)[number % 2]
        ranks = [rank for rank in cluster.everybody if number != 20 or rank not in skipping]
        cluster.post(ranks, "world", "all_reduce", site=site, done=number < 20)

    cause = cluster.verdict().cause

    assert cause is not None
    named = cause.diverging_ranks or cause.candidate_ranks
    assert named == ((0,) if skipping == [0] else (0, 1, 2))


def test_a_pair_in_different_branches_is_described_by_their_lines(cluster_of: ClusterOf) -> None:
    """The first calls of the branches are alike, so that equal texts would say nothing."""
    cluster = cluster_of(2)
    for number in range(6):
        cluster.post([0, 1], "world", "all_gather", shape=(10 + number,), site=SUM)
    for rank, (line, later) in enumerate((("save.py:1 save", 8), ("train.py:2 forward", 9))):
        for size in (260, 2080, later):
            cluster.post([rank], "world", "all_gather", shape=(size,), site=line, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.seq, cause.candidate_ranks) == (7, (0, 1))
    assert "save.py:1 save" in cause.summary
    assert "train.py:2 forward" in cause.summary
    assert "from call 9 on" in cause.summary


@pytest.mark.parametrize("known", [False, True])
def test_a_majority_in_a_call_that_is_new_to_all_proves_nothing(
    cluster_of: ClusterOf, known: bool
) -> None:
    """Rank 3 may have missed a branch, or the others took one that is none of theirs.

    Where the branch is known, rank 3 may have left it out, and be in the next round.
    """
    cluster = cluster_of(4)
    if known:
        cluster.post(cluster.everybody, "world", "broadcast", root=0, site="train.py:20 save")
    rounds(cluster)
    cluster.post([0, 1, 2], "world", "broadcast", root=0, site="train.py:20 save", done=False)
    last(cluster, [3], "all_reduce")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == (
        "op_mismatch",
        (3,),
        "likely",
    )
    assert any("the majority may have diverged" in one for one in cause.inferred) is not known
