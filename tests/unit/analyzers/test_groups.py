"""Calls inside one NCCL group: their order is a hazard and no divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclscope.tracing import scope
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]


def _in_one_group(cluster: Cluster, rank: int, rows: Sequence[int]) -> None:
    scope.enter_group()
    for row in rows:
        cluster.post([rank], "ep:0", "all_gather", shape=(row, 2), backend="nccl", done=False)
    scope.leave_group()


def test_another_order_inside_a_group_is_latent(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("ep:0")
    for rank in cluster.everybody:
        _in_one_group(cluster, rank, [3, 1, 2] if rank == 2 else [1, 2, 3])
    cluster.post(cluster.everybody, "ep:0")

    verdict = cluster.verdict()

    assert agrees(verdict)
    assert verdict.cause is None
    (finding,) = verdict.findings
    assert (finding.kind, finding.role) == ("group_order", "latent")
    assert finding.diverging_ranks == (2,)
    assert finding.extent == 3


def test_a_difference_after_a_reordered_group_is_found(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("ep:0")
    for rank in cluster.everybody:
        _in_one_group(cluster, rank, [2, 1] if rank == 2 else [1, 2])
    cluster.post([0, 2, 3], "ep:0", "all_reduce")
    cluster.post([1], "ep:0", "broadcast", root=0)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("op_mismatch", (1,))
    assert verdict.cause.seq == 8
    assert "group_order" in {finding.kind for finding in verdict.findings}


def test_the_same_calls_outside_a_group_diverge(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("ep:0")
    for rank in cluster.everybody:
        for row in [2, 1] if rank == 2 else [1, 2]:
            cluster.post([rank], "ep:0", "all_gather", shape=(row, 2), done=False)

    assert cluster.verdict().status == "diverged"


def test_other_calls_in_a_group_diverge(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("ep:0")
    for rank in cluster.everybody:
        _in_one_group(cluster, rank, [1, 5] if rank == 2 else [1, 2])

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("size_mismatch", (2,))
