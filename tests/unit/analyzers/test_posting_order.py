"""Calls without recorded completion, as on NCCL: where ranks wait, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.tracing import scope
from ncclscope.tracing.graphs import TracedGraph
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]

USUAL = ("world", "tp:0") * 3
SWAPPED = (*USUAL[:-2], "tp:0", "world")


def members(cluster: Cluster, label: str, rank: int) -> range:
    """All ranks, or the pair of one."""
    return cluster.everybody if label == "world" else range(rank // 2 * 2, rank // 2 * 2 + 2)


def post(cluster: Cluster, rank: int, labels: Iterable[str], **given: Any) -> None:
    """Post an all_reduce on each of some communicators."""
    for label in labels:
        own = {"done": False, "backend": "nccl", "site": f"model.py:{len(label)} f"} | given
        cluster.post([rank], label, members=members(cluster, label, rank), **own)


def capture(cluster: Cluster, rank: int, labels: Iterable[str]) -> TracedGraph:
    """Capture the same into a graph."""
    graphs = cluster.tracers[rank].graphs
    begun = graphs.begin()
    post(cluster, rank, labels, captured=True)
    return graphs.end(begun)


def post_all(cluster: Cluster, odd: Mapping[int, Iterable[str]] | None = None) -> None:
    """Post a step on all ranks, in another order on some."""
    for rank in cluster.everybody:
        post(cluster, rank, (odd or {}).get(rank, USUAL))


@pytest.mark.parametrize("barrier", [False, True])
def test_a_rank_that_posts_in_another_order_is_named(cluster_of: ClusterOf, barrier: bool) -> None:
    cluster = cluster_of(4)
    if barrier:
        cluster.post(cluster.everybody, "world", "barrier", shape=(1,), backend="nccl")
    post_all(cluster)
    post_all(cluster, {3: SWAPPED})

    verdict = cluster.verdict()

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == ("hung", "order_cycle", (3,))
    assert cause.confidence == "likely"
    assert cause.odd is not None
    assert cause.peers is not None
    assert (cause.odd.comm, cause.odd.seq) == ("tp:0/2,3", 6)
    assert (cause.peers.comm, cause.peers.seq) == ("world/0,1,2,3", 6 + barrier)
    # That they wait there is not recorded.
    assert all("stands in" not in line for line in cause.evidence)
    assert "as on one stream" in cause.inferred[0]
    assert (
        f"rank 3 posted #6 on tp:0 of ranks 2 3 at model.py:4 f, and after it #{6 + barrier} on "
        in (" ".join(cause.evidence))
    )
    assert verdict.quiet_seconds == pytest.approx(60.0, abs=1.0)


def test_an_order_swap_in_a_graph_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = [[capture(cluster, rank, USUAL) for rank in cluster.everybody]]
    graphs.append(
        [capture(cluster, rank, SWAPPED if rank == 3 else USUAL) for rank in cluster.everybody]
    )
    for number in (0, 0, 0, 1):
        for graph in graphs[number]:
            graph.replay()

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("order_cycle", (3,))
    assert cause.odd is not None
    assert cause.odd.replay is not None
    assert (cause.odd.graph, cause.odd.replay.number, cause.odd.replay.call) == (2, 1, 5)


def test_of_two_against_two_those_that_changed_their_order_are_named(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    post_all(cluster)
    post_all(cluster, {1: SWAPPED, 3: SWAPPED})

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("order_cycle", (1, 3))
    assert cause.confidence == "likely"


def test_pairs_without_a_name_are_compared_with_each_other(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        pair, own = f"pg{rank // 2 + 1}", range(rank // 2 * 2, rank // 2 * 2 + 2)
        for label in ("world", pair, *((pair, "world") if rank == 3 else ("world", pair))):
            ranks = cluster.everybody if label == "world" else own
            cluster.post([rank], label, members=ranks, done=False, backend="nccl")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("order_cycle", (3,), "likely")
    assert any("pg1 to pg2 have the same role" in line for line in cause.inferred)


def test_replicas_that_go_on_do_not_hide_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        post(
            cluster, rank, ("tp:0", "ep:0", *(("ep:0", "tp:0") if rank == 3 else ("tp:0", "ep:0")))
        )
    for rank in range(2):
        post(cluster, rank, ("tp:0", "ep:0") * 10)

    cause = cluster.verdict(quiet={0: 0.1, 1: 0.1}).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("order_cycle", (3,))


@pytest.mark.parametrize("odd", [(3,), (1, 3)])
def test_cooperative_launch_that_waits_for_sms_is_likely(
    cluster_of: ClusterOf, odd: tuple[int, ...]
) -> None:
    cluster = cluster_of(4)
    for tracer in cluster.tracers:
        tracer.describe(launches={"deep_ep": {"sms": 20, "of": 132}})
    libraries = [("world", "nccl", "all_gather"), ("world/deep_ep", "deep_ep", "dispatch")]
    for step in range(5):
        for rank in cluster.everybody:
            swapped = step == 4 and rank in odd
            for label, backend, op in libraries[:: -1 if swapped else 1]:
                cluster.post([rank], label, op, done=False, backend=backend, shape=(8, 16))

    verdict = cluster.verdict()
    cause = verdict.cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("order_cycle", odd)
    assert "deep_ep launches its kernels cooperatively, with 20 SMs of the GPU's 132 each" in (
        cause.evidence
    )
    (order,) = (one for one in verdict.findings if one.analyzer == "order_cycle")
    assert order.inferred[0].startswith("likely: all_gather on world of ranks 0-3 holds SMs for")
    assert "on one stream" not in f"{order.summary} {order.inferred}"


# --- what looks like it ------------------------------------------------------------------------


def test_the_same_order_at_different_times_is_no_swap(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in (2, 0, 3, 1):
        post(cluster, rank, USUAL)

    assert agrees(cluster.verdict())


def test_replicas_that_do_not_do_the_same_need_no_common_order(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        own = ("tp:0", "ep:0", "ep:0") if rank < 2 else ("ep:0", "tp:0")
        post(cluster, rank, ("world", *own, "world"))

    assert agrees(cluster.verdict())


def test_inside_an_nccl_group_there_is_no_order(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    post_all(cluster)
    for rank in cluster.everybody:
        scope.enter_group()
        post(cluster, rank, SWAPPED[-2:] if rank == 3 else USUAL[-2:])
        scope.leave_group()

    assert agrees(cluster.verdict())


def test_who_has_taken_further_steps_has_come_past_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    post_all(cluster, {3: SWAPPED})
    for step in range(3):
        for tracer in cluster.tracers:
            tracer.step(step)
        post_all(cluster)

    assert agrees(cluster.verdict())


def test_who_has_posted_thousands_of_calls_since_has_come_past_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    post_all(cluster, {3: SWAPPED})
    for rank in cluster.everybody:
        post(cluster, rank, USUAL * 400)

    assert agrees(cluster.verdict())


def test_who_ended_in_order_did_not_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    post_all(cluster, {3: SWAPPED})
    for tracer in cluster.tracers:
        tracer.close()

    assert cluster.verdict().status == "ok"


def test_a_job_that_was_busy_until_now_may_come_to_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    post_all(cluster, {3: SWAPPED})

    assert cluster.verdict(quiet=0.3).status == "ok"
    run = cluster.run(quiet=5.0)
    alive = tuple(replace(rank, alive=True) for rank in run.ranks)
    assert diagnose(replace(run, ranks=alive)).status == "unknown"


def test_what_is_known_to_have_completed_is_no_swap(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        post(cluster, rank, SWAPPED if rank == 3 else USUAL, done=True)

    assert agrees(cluster.verdict())


# --- where ranks wait after a barrier -----------------------------------------------------------


@pytest.mark.parametrize("absent", [1, 3])
def test_after_a_barrier_ranks_wait_where_one_is_missing(
    cluster_of: ClusterOf, absent: int
) -> None:
    cluster = cluster_of(4)
    cluster.post(cluster.everybody, "world", "barrier", shape=(1,), backend="nccl")
    for _ in range(50):
        cluster.post(cluster.everybody, "world", done=False, backend="nccl")
    cluster.post(set(range(4)) - {absent}, "world", done=False, backend="nccl")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("not_joined", (absent,), 52)


def test_after_a_barrier_equal_counts_are_no_stall(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.post(cluster.everybody, "world", done=False, backend="nccl")
    cluster.post(cluster.everybody, "world", "barrier", shape=(1,), backend="nccl")
    cluster.post(cluster.everybody, "world", done=False, backend="nccl")

    assert agrees(cluster.verdict())


def test_a_backend_with_completions_reports_the_call_after_a_barrier(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    for backend in ("gloo", "ours"):
        cluster.post(cluster.everybody, backend, backend=backend)
        cluster.post(cluster.everybody, backend, "barrier", shape=(1,), backend=backend)
    cluster.post(cluster.everybody, "gloo", done=False)
    cluster.post(cluster.everybody, "ours", done=False, backend="ours")

    causes = [f for f in cluster.verdict().findings if f.role == "cause"]

    assert {cause.kind for cause in causes} == {"stalled"}


def test_a_barrier_that_holds_all_hosts_does_not_come_to_an_end(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for _ in range(5):
        cluster.post(cluster.everybody, "world", done=False, backend="nccl")
    cluster.post(cluster.everybody, "world", "barrier", shape=(1,), done=False, backend="nccl")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.seq, cause.diverging_ranks) == ("stalled", 6, ())


def test_a_barrier_that_the_host_went_on_from_does_not_hold_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.post(cluster.everybody, "world", "barrier", shape=(1,), done=False, backend="nccl")
    cluster.post(cluster.everybody, "ep:0", done=False, backend="nccl")

    assert agrees(cluster.verdict())


def test_of_a_long_cycle_the_call_shared_with_the_diverging_rank_is_named(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(3)
    ring = {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    order = {0: "ac", 1: "ba", 2: "cb"}
    for rank in cluster.everybody:
        for label in order[rank]:
            cluster.post([rank], label, members=ring[label], done=False, backend="nccl")

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.kind == "order_cycle"
    assert cause.odd is not None
    assert cause.peers is not None
    pending_calls = {rank: order[rank][0] for rank in order}
    odd = next(
        rank for rank in pending_calls if cause.odd.comm.startswith(f"{pending_calls[rank]}/")
    )
    assert str(odd) in cause.peers.comm.partition("/")[2]
