"""Two causes in one run, and what only follows from one."""

from __future__ import annotations

from collections.abc import Callable

from ncclscope.engine.verdict import Verdict
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _causes(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (finding.kind, finding.diverging_ranks)
        for finding in verdict.findings
        if finding.role == "cause"
    ]


def test_a_skip_and_a_wrong_call_on_one_communicator_are_two(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(6)
    for rank in cluster.everybody:
        for number in range(12):
            if (rank, number) != (1, 4):
                op = "all_gather" if (rank, number) == (4, 8) else "all_reduce"
                shape = (10 + number, 2)
                cluster.post([rank], "tp:0", op, shape=shape, done=False, backend="nccl")

    verdict = cluster.verdict()

    assert _causes(verdict) == [("missing_call", (1,)), ("op_mismatch", (4,))]


def test_a_rank_that_is_missing_elsewhere_is_a_cause_of_its_own(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(8)
    for members in ((0, 1, 2, 3), (4, 5, 6, 7)):
        cluster.history("tp:0", members=members)
    cluster.post([0, 2, 3], "tp:0", members=(0, 1, 2, 3), done=False)
    cluster.post([1], "tp:0", "all_gather", members=(0, 1, 2, 3), done=False)
    cluster.post([4, 5, 7], "tp:0", members=(4, 5, 6, 7), done=False)

    assert _causes(cluster.verdict()) == [("op_mismatch", (1,)), ("not_joined", (6,))]


def test_a_skipped_communicator_without_any_record_is_one_too(cluster_of: ClusterOf) -> None:
    """Rank 3 never posted on ep:0, and went on to what its peers posted after it."""
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl", done=False)
    for rank in (0, 1, 2):
        cluster.post([rank], "ep:0", "all_gather", done=False, backend="nccl")
    for rank in cluster.everybody:
        op = "all_gather" if rank == 1 else "all_reduce"
        cluster.post([rank], "world", op, done=False, backend="nccl")

    causes = _causes(cluster.verdict())

    assert causes[0] == ("op_mismatch", (1,))
    assert causes[1][1] == (3,)
    assert len(causes) == 2


def test_who_waits_for_a_diverging_rank_elsewhere_is_a_consequence(cluster_of: ClusterOf) -> None:
    """Near miss: ranks 2 and 3 differ in their pair, so that neither comes to the world."""
    cluster = cluster_of(6)
    cluster.history("world")
    cluster.history("tp:0", members=(2, 3, 4))
    cluster.post([2, 4], "tp:0", members=(2, 3, 4), done=False)
    cluster.post([3], "tp:0", "all_gather", members=(2, 3, 4), done=False)
    cluster.post([0, 1, 5], "world", done=False)

    assert _causes(cluster.verdict()) == [("op_mismatch", (3,))]


def test_a_process_that_ends_in_the_differing_call_is_a_consequence(cluster_of: ClusterOf) -> None:
    """Gloo aborts a process whose peer sends less than it expects; others wait for it."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("dp:0", members=(0, 1))
    cluster.post([0, 1, 2], "world", shape=(64, 2), done=False)
    cluster.post([3], "world", shape=(32, 2), done=False)
    cluster.tracers[1].describe(ended_with="RuntimeError: message sizes differ")
    cluster.post([0], "dp:0", members=(0, 1), done=False)

    verdict = cluster.verdict(quiet={1: 0.2})

    assert _causes(verdict) == [("size_mismatch", (3,))]


def test_a_process_that_ended_before_the_differing_call_is_a_cause(cluster_of: ClusterOf) -> None:
    """Near miss: rank 1 never came to it."""
    cluster = cluster_of(5)
    cluster.history("world")
    cluster.post([0, 2, 4], "world", shape=(64, 2), done=False)
    cluster.post([3], "world", shape=(32, 2), done=False)

    assert set(_causes(cluster.verdict(quiet={1: 0.2}))) == {
        ("size_mismatch", (3,)),
        ("dead_rank", (1,)),
    }
