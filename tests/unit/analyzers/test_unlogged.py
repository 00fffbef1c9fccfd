"""Members whose record lacks a communicator on which their peers completed calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.model import State
from tests.support.cluster import Cluster
from tests.support.rings import fill, tracer_in

ClusterOf = Callable[[int], Cluster]


def _posted(cluster: Cluster, op: str, done: bool = True) -> Cluster:
    """Return a cluster in which rank 1 has no record of `ep:0`."""
    for number in range(3):
        cluster.post(cluster.everybody, "tp:0", shape=(10 + number, 2))
        cluster.post([0, 2, 3], "ep:0", op, done=done)
    return cluster


@pytest.mark.parametrize("quiet", [None, 1.0, 60.0])
def test_a_member_without_a_record_of_completed_calls_is_incomplete(
    cluster_of: ClusterOf, quiet: float | None
) -> None:
    verdict = _posted(cluster_of(4), "all_gather").verdict(quiet=quiet)

    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert "rank 1" in verdict.summary
    assert [text for text in verdict.coverage.unseen if text.startswith("rank 1: no call on ep:0")]


def test_calls_that_complete_without_a_member_prove_no_gap(cluster_of: ClusterOf) -> None:
    verdict = _posted(cluster_of(4), "broadcast", done=True).verdict(quiet=1.0)

    assert verdict.status != "incomplete"


def test_a_member_that_never_came_is_named_while_its_peers_wait(cluster_of: ClusterOf) -> None:
    cause = _posted(cluster_of(4), "all_gather", done=False).verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (1,))


def test_members_without_a_record_of_calls_are_incomplete_when_all_exited(
    cluster_of: ClusterOf,
) -> None:
    """The completion of the calls is not recorded, as of calls on PyNccl."""
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0], "ep:0", "all_gather", done=False, backend="nccl")
    for tracer in cluster.tracers:
        tracer.close()

    verdict = cluster.verdict(quiet=1.0)

    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert "ranks 1-3" in verdict.summary


def test_a_group_that_is_made_while_rings_are_read_is_no_gap(tmp_path: Path) -> None:
    """Rank 1 joins after its ring was read, and before the calls of rank 0 are."""
    tracers = [tracer_in(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    for tracer in tracers:
        fill(tracer, tracer.communicator("w", "world", [0, 1], "gloo"), 1, 4)
    groups = [tracers[0].communicator("g", "group", [0, 1], "gloo")]
    place = tracers[0].record(groups[0], "all_reduce", shape=(4,), redop="sum")

    run = open_run(tmp_path)
    groups.append(tracers[1].communicator("g", "group", [0, 1], "gloo"))
    for tracer, group in zip(tracers, groups, strict=True):
        tracer.record(group, "all_reduce", shape=(4,), redop="sum")
    tracers[0].complete(place)

    assert run.by_rank[0].logs["g"].call(1).state is State.COMPLETED
    assert "g" not in run.by_rank[1].logs
    assert diagnose(run).status == "ok"
