"""Calls left out, put in, or made elsewhere; for each a test that triggers and a near miss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]


def _replica(
    cluster: Cluster,
    *,
    skip: tuple[int, str] | None = None,
    extra: tuple[int, str] | None = None,
    elsewhere: int | None = None,
    layers: int = 6,
) -> None:
    """TP=4 x DP=2 for one step; calls of each layer have sizes of their own."""
    for rank in cluster.everybody:
        replica, place = divmod(rank, 4)
        tp = tuple(range(replica * 4, replica * 4 + 4))
        dp = (place, place + 4)
        for layer in range(layers):
            here = layer == 2
            if not (here and skip == (rank, "tp:0")):
                cluster.post([rank], "tp:0", shape=(20 + layer, 2), members=tp, done=False)
            if here and extra == (rank, "tp:0"):
                cluster.post([rank], "tp:0", shape=(99, 2), members=tp, done=False)
            if elsewhere == rank and layer >= 2:
                cluster.post(
                    [rank],
                    "tp:0",
                    "all_gatherv",
                    shape=(3, 8),
                    sizes=[3] * 4,
                    members=tp,
                    done=False,
                )
            else:
                cluster.post(
                    [rank],
                    "dp:0",
                    "all_gatherv",
                    shape=(5, 2),
                    sizes=[5, 5 + layer],
                    members=dp,
                    done=False,
                )
            cluster.post([rank], "dp:0", "all_reduce", shape=(7, 2), members=dp, done=False)


def test_missing_call_is_named_with_the_call_that_is_missing(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(8)
    _replica(cluster, skip=(5, "tp:0"))

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (5,), 3)
    assert cause.peers is not None
    assert cause.peers.shape == (22, 2)
    assert cause.extent == 1


def test_missing_call_is_seen_where_all_stops_at_once(cluster_of: ClusterOf) -> None:
    """Nothing follows the difference, but the diverging rank posted what always comes next."""
    cluster = cluster_of(4)
    for _ in range(6):
        cluster.post(cluster.everybody, "tp:0", "all_reduce")
        cluster.post(cluster.everybody, "tp:0", "all_gather")
        cluster.post(cluster.everybody, "tp:0", "broadcast", root=0)
    cluster.post([0, 1, 3], "tp:0", "all_reduce", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("missing_call", (2,))
    assert cause.confidence == "likely"


def test_in_a_pair_a_broken_rhythm_is_evidence(cluster_of: ClusterOf) -> None:
    """Equal calls, one of them skipped: two ranks of tensor parallelism have no majority."""
    cluster = cluster_of(2)
    for _ in range(4):
        cluster.post([0, 1], "tp:0", "all_reduce")
        cluster.post([0, 1], "tp:0", "all_reduce")
        cluster.post([0, 1], "tp:0", "all_gather")
    cluster.post([0, 1], "tp:0", "all_reduce")
    cluster.post([0], "tp:0", "all_reduce", done=False)
    cluster.post([1], "tp:0", "all_gather", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (1,), 14)
    assert cause.confidence == "likely"


@pytest.mark.parametrize("odd", [0, 1])
def test_in_a_pair_fewer_calls_in_a_step_are_a_note(cluster_of: ClusterOf, odd: int) -> None:
    """The same operation throughout, on the tokens of the step: a skip looks like another size."""
    cluster = cluster_of(2)
    for step in range(1, 10):
        for rank in cluster.everybody:
            cluster.tracers[rank].step(step, tokens=step)
            for _ in range(3 if (rank, step) == (odd, 7) else 4):
                cluster.post([rank], "tp:0/custom", shape=(step, 8), backend="custom", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (), 28)
    assert (cause.candidate_ranks, cause.confidence) == ((0, 1), "ambiguous")
    notes = " ".join(cause.inferred)
    assert f"rank {odd} posted another number of calls in one step" in notes


def test_a_call_of_a_new_kind_in_one_step_blames_nobody(cluster_of: ClusterOf) -> None:
    """Log probabilities were asked for in that step: who gathers them may well be right."""
    cluster = cluster_of(2)
    for step in range(1, 10):
        for rank in cluster.everybody:
            cluster.tracers[rank].step(step, tokens=step)
            if (rank, step) == (0, 7):
                cluster.post([rank], "tp:0", "all_gather", shape=(step, 8), done=False)
            for _ in range(4):
                cluster.post([rank], "tp:0", shape=(step, 8), done=step < 7)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.confidence) == ((), "ambiguous")


def test_a_pair_without_a_rhythm_blames_nobody(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.post([0, 1], "tp:0", "broadcast", root=0)
    cluster.post([0], "tp:0", "all_reduce", done=False)
    cluster.post([1], "tp:0", "all_gather", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (0, 1))


def test_a_rank_that_is_behind_has_missed_nothing(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history(count=20)
    cluster.post([0, 1, 3], "tp:0", done=False)

    verdict = cluster.verdict(quiet=0.1)

    assert verdict.status == "ok"
    assert verdict.findings == ()


def test_extra_call_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(8)
    _replica(cluster, extra=(1, "tp:0"))

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("extra_call", (1,), 4)
    assert cause.odd is not None
    assert cause.odd.shape == (99, 2)


def test_an_extra_call_that_all_make_is_none(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post(cluster.everybody, "tp:0", shape=(99, 2))

    assert agrees(cluster.verdict())


def test_comm_swap_is_one_cause_with_both_communicators(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(8)
    _replica(cluster, elsewhere=6)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("comm_swap", (6,))
    assert verdict.cause.extent == 4
    assert verdict.cause.comm is not None
    assert verdict.cause.comm.ranks == (4, 5, 6, 7)
    assert [f.role for f in verdict.findings].count("cause") == 1
    row = next(row for row in verdict.table if row.rank.rank == 6)
    assert (row.cells["tp:0"].delta, row.cells["dp:0"].delta) == (4, -4)


@pytest.mark.parametrize("op", ["all_gatherv", "all_reduce"])
def test_calls_ahead_of_all_peers_are_a_swap_if_they_are_foreign(
    cluster_of: ClusterOf, op: str
) -> None:
    """Nothing follows on tp:0, so that only their kind distinguishes swapped calls from a lead."""
    cluster = cluster_of(4)
    cluster.history("tp:0")
    cluster.history("dp:0")
    for layer in range(3):
        cluster.post([0, 1, 3], "dp:0", op, shape=(3, 8), sizes=[3] * 4, done=False)
        cluster.post([2], "tp:0", op, shape=(3, 8), sizes=[3] * 4, done=False)
        cluster.post(cluster.everybody, "dp:0", "all_gather", shape=(layer + 1, 2), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.diverging_ranks == (2,)
    assert cause.kind == ("comm_swap" if op == "all_gatherv" else "missing_call")


def test_a_foreign_call_unlike_the_one_that_was_skipped_is_no_swap(
    cluster_of: ClusterOf,
) -> None:
    """A rank that skipped a call of its metrics came to the barrier at the end before its peers."""
    cluster = cluster_of(4)
    for step in range(6):
        cluster.post(cluster.everybody, "world", shape=(8,))
        if step == 3:
            cluster.post([0, 1, 3], "metrics", shape=(4,))
        else:
            cluster.post(cluster.everybody, "metrics", shape=(4,))
    cluster.post([2], "world", "barrier", shape=None, dtype=None, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (2,), 4)


def test_foreign_calls_of_another_number_than_was_skipped_are_no_swap(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history("tp:0")
    cluster.history("dp:0")
    for layer in range(3):
        cluster.post([0, 1, 3], "dp:0", "all_gatherv", shape=(3, 8), sizes=[3] * 4, done=False)
        cluster.post(cluster.everybody, "dp:0", "all_gather", shape=(layer + 1, 2), done=False)
    for _ in range(2):
        cluster.post([2], "tp:0", "all_gatherv", shape=(3, 8), sizes=[3] * 4, done=False)

    assert "comm_swap" not in {finding.kind for finding in cluster.verdict().findings}


def test_more_here_and_fewer_there_by_other_numbers_is_no_swap(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(8)
    _replica(cluster, extra=(6, "tp:0"))

    assert "comm_swap" not in {finding.kind for finding in cluster.verdict().findings}
