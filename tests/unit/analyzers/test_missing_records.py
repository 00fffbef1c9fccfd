"""Ranks without a record: whether others wait for them, or nobody knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def test_ranks_that_went_on_and_exited_wait_for_no_missing_record(cluster_of: ClusterOf) -> None:
    """On NCCL nothing says that the calls of a thread, which nobody waited for, have completed."""
    cluster = cluster_of(3)
    for label in ("save", "world", "save", "save"):
        cluster.post(cluster.everybody, label, done=label == "world", backend="nccl")
    for tracer in cluster.tracers:
        tracer.close()
    cluster.tracers[2].ring.path.unlink()

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("incomplete", None)


@pytest.mark.parametrize("came", [True, False], ids=["came", "never came"])
@pytest.mark.parametrize("rests", [True, False], ids=["others rest", "all wait"])
def test_an_idle_job_waits_for_no_missing_record_that_had_come(
    cluster_of: ClusterOf, came: bool, rests: bool
) -> None:
    """Rank 3 alone shares calls with rank 2, which nobody waited for. Ranks 0 and 1 rest."""
    cluster = cluster_of(4)
    members = (2, 3) if rests else cluster.everybody
    for _ in range(3):
        cluster.post(members, "part", members=members, done=False, backend="nccl")
        if came:
            cluster.post(cluster.everybody, "world", "barrier", backend="nccl")
    cluster.post(cluster.everybody, "all", members=(0, 1, 3), backend="nccl", done=False)
    cluster.tracers[2].ring.path.unlink()

    verdict = cluster.verdict()

    assert verdict.status == ("incomplete" if came and rests else "hung")


def test_a_rank_that_went_on_did_not_wait_as_for_other_operations(cluster_of: ClusterOf) -> None:
    """It waited for a broadcast at the start, and for none of the calls in its loop."""
    cluster = cluster_of(4)
    cluster.post((2, 3), "part", "broadcast", members=(2, 3), root=0, backend="nccl")
    for _ in range(3):
        cluster.post((2, 3), "part", members=(2, 3), done=False, backend="nccl")
        cluster.post(cluster.everybody, "world", "barrier", backend="nccl")
    cluster.tracers[2].ring.path.unlink()

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("incomplete", None)
