"""CUDA graphs: replays line up like calls, and ranks that replay something else are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ncclscope.tracing import scope
from ncclscope.tracing.graphs import TracedGraph
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]
Layer = tuple[str, dict[str, Any]]

LAYERS = 31


def layers(tokens: int, count: int = LAYERS) -> list[Layer]:
    """Return the calls of some layers: two all-reduces each, of some tokens."""
    return [
        ("all_reduce", {"shape": (tokens, 8), "site": f"layer.py:{10 + half} forward"})
        for _ in range(count)
        for half in range(2)
    ]


def replay(graphs: Iterable[TracedGraph], times: int = 1) -> None:
    for graph in graphs:
        for _ in range(times):
            graph.replay()


def decode_graphs(cluster: Cluster, *sizes: int) -> list[list[TracedGraph]]:
    """Capture a graph for each number of tokens on all ranks, as an engine does when it starts."""
    return [[cluster.capture(rank, layers(size)) for size in sizes] for rank in cluster.everybody]


def test_replays_that_agree(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8, 16)
    for size in (0, 1, 1, 0):
        replay(own[size] for own in graphs)
        cluster.post(cluster.everybody, "tp:0", shape=(100, 8), done=False)

    verdict = cluster.verdict()

    assert agrees(verdict)
    (log,) = verdict.run.ranks[2].logs.values()
    assert log.calls == 4 * (2 * LAYERS + 1)
    call = log.call(2 * LAYERS + 1 + 5)
    assert (call.graph, call.replay) == (2, graphs_place(1, 5))
    assert verdict.run.ranks[2].records == 8


def graphs_place(number: int, call: int, calls: int = 2 * LAYERS) -> Any:
    from ncclscope.model.graphs import Replay

    return Replay(number, call, calls)


def test_a_graph_that_is_never_replayed_posts_nothing(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history()
    cluster.capture(1, layers(8))

    verdict = cluster.verdict()

    assert agrees(verdict)
    assert [log.calls for rank in verdict.run.ranks for log in rank.logs.values()] == [5, 5]


@pytest.mark.parametrize("diverging", [0, 2])
def test_a_rank_that_replays_another_graph(cluster_of: ClusterOf, diverging: int) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8, 16)
    replay((own[0] for own in graphs), times=3)
    for rank, own in enumerate(graphs):
        replay([own[1 if rank == diverging else 0]])

    verdict = cluster.verdict()

    cause = verdict.cause
    assert verdict.status == "diverged"
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("capture_mismatch", (diverging,))
    assert cause.seq == 3 * 2 * LAYERS + 1
    assert cause.confidence == "certain"
    assert "another CUDA graph than its peers as call 187 on" in cause.summary
    assert "graph 2, of 62 calls; ranks" in cause.summary
    assert f"graph 2 on rank {diverging}" not in cause.evidence[-1]
    assert any(f"is graph 1 on rank {diverging}" in fact for fact in cause.evidence)
    assert [finding.kind for finding in verdict.findings] == ["capture_mismatch"]


def test_a_graph_that_begins_like_that_of_the_peers(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = [
        [cluster.capture(rank, layers(8, count)) for count in (LAYERS, LAYERS - 1)]
        for rank in cluster.everybody
    ]
    for rank, own in enumerate(graphs):
        replay([own[1 if rank == 3 else 0]])
    cluster.post(cluster.everybody, "tp:0", shape=(100, 8), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("capture_mismatch", (3,))
    assert cause.seq == 2 * LAYERS - 1
    assert "another CUDA graph than its peers as call 1 on" in cause.summary


def test_a_rank_that_posts_eagerly_what_its_peers_replay(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    replay((own[0] for own in graphs), times=2)
    replay(own[0] for own in graphs[:3])
    for op, fields in layers(8):
        cluster.post([3], "tp:0", op, done=False, **fields)

    verdict = cluster.verdict()

    cause = verdict.cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("capture_mismatch", (3,), 125)
    assert "posted eagerly call 125" in cause.summary
    assert "ranks 0-2 replayed it (replay 3 of graph 1, call 1 of 62)" in cause.summary
    assert [finding.kind for finding in verdict.findings] == ["capture_mismatch"]


def test_a_rank_that_replays_what_its_peers_post(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    for op, fields in layers(8):
        cluster.post(range(3), "tp:0", op, done=False, **fields)
    replay(graphs[3])

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("capture_mismatch", (3,), 1)
    assert "(replay 1 of graph 1, call 1 of 62); ranks 0-2 posted it eagerly." in cause.summary


def test_graphs_of_other_numbers_with_the_same_calls(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    graphs = []
    for rank in cluster.everybody:
        sizes = (8, 16) if rank else (16, 8)
        own = {size: cluster.capture(rank, layers(size)) for size in sizes}
        graphs.append(own)
    for size in (8, 16, 8):
        replay(own[size] for own in graphs)

    verdict = cluster.verdict()

    assert agrees(verdict)
    assert {own[8].number for own in graphs} == {1, 2}


def test_pieces_on_one_rank_and_the_whole_on_others(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    pieces = [cluster.capture(0, layers(8, 1)) for _ in range(LAYERS)]
    whole = [cluster.capture(rank, layers(8)) for rank in (1, 2)]
    for _ in range(3):
        replay(pieces)
        replay(whole)

    assert agrees(cluster.verdict())

    replay(whole)
    replay(pieces[:7])
    verdict = cluster.verdict()
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (0,))
    assert verdict.cause.seq == 3 * 2 * LAYERS + 15


@pytest.mark.parametrize(("own", "kind", "extent"), [(3, "missing_call", 1), (6, "extra_call", 2)])
@pytest.mark.parametrize("ends", [True, False])
def test_a_graph_of_equal_calls_that_has_another_number_of_them(
    cluster_of: ClusterOf, own: int, kind: str, extent: int, ends: bool
) -> None:
    """It was a round left out at the end, or a rank that never joined the last call."""
    cluster = cluster_of(4)
    cluster.post(cluster.everybody, "tp:0", shape=(64,))
    counts = [own if rank == 1 else 4 for rank in cluster.everybody]
    graphs = [
        cluster.capture(rank, [("all_reduce", {"shape": (64,)})] * counts[rank])
        for rank in cluster.everybody
    ]
    replay([graphs[1]], times=6)
    replay((graphs[rank] for rank in (0, 2, 3)), times=5)
    if ends:
        end = {"shape": None, "dtype": None, "done": False}
        cluster.post([1] if own < 4 else [0, 2, 3], "tp:0", "barrier", **end)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == (kind, (1,), extent)
    assert cause.seq == 1 + min(own, 4) + 1
    assert f"graph 1 has {own} calls there" in cause.summary


@pytest.mark.parametrize("lacking", [0, 1, 3])
def test_a_graph_that_lacks_a_call_among_calls_of_two_sizes(
    cluster_of: ClusterOf, lacking: int
) -> None:
    """What is left of it may look like two calls in the opposite order."""
    cluster = cluster_of(4)
    whole = [("all_reduce", {"shape": (size,)}) for size in (24, 64, 24, 64)]
    for _, given in whole:
        cluster.post(cluster.everybody, "tp:0", **given)
    graphs = []
    for rank in cluster.everybody:
        calls = [call for number, call in enumerate(whole) if rank != 1 or number != lacking]
        graphs.append(cluster.capture(rank, calls))
    replay([graphs[1]], times=2)
    replay(graphs[rank] for rank in (0, 2, 3))

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == ("missing_call", (1,), 1)
    assert cause.seq == 4 + 1 + lacking
    assert "graph 1 has 3 calls there, that of ranks 0 2 3 has 4 calls" in cause.summary


def test_a_swap_inside_a_captured_graph(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    calls = [("all_gather", {"shape": (2, 8)}), ("all_reduce", {"shape": (8, 8)})] * 4
    replay((cluster.capture(rank, calls) for rank in cluster.everybody), times=5)
    graphs = []
    for rank in cluster.everybody:
        own = list(calls)
        if rank == 2:
            own[4:6] = own[5], own[4]
        graphs.append(cluster.capture(rank, own))
    replay(graphs)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("op_mismatch", (2,), 45)
    assert any("replay 1 of graph 2, call 5 of 8" in fact for fact in cause.evidence)


def test_a_rank_one_replay_behind(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    replay((own[0] for own in graphs), times=20)
    replay(own[0] for own in graphs[:3])

    verdict = cluster.verdict()

    cause = verdict.cause
    assert verdict.status == "hung"
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (3,))
    assert cause.seq == 20 * 62 + 1


def test_a_rank_that_skips_a_replay_and_goes_on(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    for step in range(6):
        for rank, own in enumerate(graphs):
            if (rank, step) != (1, 4):
                replay(own)
        cluster.post(cluster.everybody, "tp:0", shape=(100 + step, 8), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == ("missing_call", (1,), 62)
    assert cause.seq == 4 * 63 + 1
    assert "skipped 1 replay of graph 1 (62 calls) on tp:0" in cause.summary


def test_a_rank_that_replays_once_more_and_goes_on(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    for step in range(6):
        for rank, own in enumerate(graphs):
            replay(own, times=2 if (rank, step) == (2, 3) else 1)
        cluster.post(cluster.everybody, "tp:0", shape=(100 + step, 8), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == ("extra_call", (2,), 62)
    assert cause.seq == 4 * 63


def test_a_long_replay_that_is_left_out_among_equal_calls(cluster_of: ClusterOf) -> None:
    """All calls are equal in what members must agree in; the lines they come from differ."""
    cluster = cluster_of(4)
    halves = [
        [("all_reduce", {"shape": (8, 8), "site": f"{name}.py:{n} f"}) for n in range(150)]
        for name in ("encoder", "decoder")
    ]
    graphs = [[cluster.capture(rank, half) for half in halves] for rank in cluster.everybody]
    for step in range(8):
        for rank, (encoder, decoder) in enumerate(graphs):
            encoder.replay()
            if (rank, step) != (1, 5):
                decoder.replay()

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == ("missing_call", (1,), 150)
    assert cause.seq == 11 * 150 + 1


def test_pieces_of_which_one_is_another_than_in_the_whole(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    held = layers(8, 4), layers(8, 1) + layers(16, 3), layers(8, 8)
    graphs = [[cluster.capture(rank, calls) for calls in held] for rank in cluster.everybody]
    for rank, (piece, wrong, whole) in enumerate(graphs):
        replay([piece, wrong] if rank == 3 else [whole])

    cause = cluster.verdict().cause

    assert cause is not None
    # It began with what the whole begins with: the first call that differs is reported.
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("size_mismatch", (3,), 11)


def test_one_eager_call_that_equals_one_behind_the_replay(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    graphs = decode_graphs(cluster, 8)
    replay(own[0] for own in graphs[:3])
    op, fields = layers(8)[0]
    cluster.post(cluster.everybody, "tp:0", op, done=False, **fields)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("capture_mismatch", (3,), 1)


def test_an_order_inside_of_an_nccl_group_that_is_replayed(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    graphs = []
    for rank in cluster.everybody:
        begun = cluster.tracers[rank].graphs.begin()
        rows = (1, 2, 3) if rank != 1 else (1, 3, 2)
        scope.enter_group()
        for count in rows:
            cluster.post([rank], "tp:0", shape=(count, 2), captured=True, done=False)
        scope.leave_group()
        graphs.append(cluster.tracers[rank].graphs.end(begun))
    replay(graphs, times=2)

    findings = cluster.verdict().findings

    assert [(found.kind, found.role, found.seq) for found in findings] == [
        ("group_order", "latent", 2),
        ("group_order", "latent", 5),
    ]
    assert all(found.diverging_ranks == (1,) for found in findings)
    assert "3 calls" in findings[0].summary


def test_a_pair_without_a_majority(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    graphs = decode_graphs(cluster, 8, 16)
    replay(own[0] for own in graphs)
    replay([graphs[0][0], graphs[1][1]])

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("capture_mismatch", ())
    assert cause.candidate_ranks == (0, 1)
    assert cause.confidence == "ambiguous"


def test_replays_do_not_report_completion_and_do_not_stall(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history()  # of these the completion is recorded
    graphs = decode_graphs(cluster, 8)
    replay((own[0] for own in graphs), times=3)

    assert agrees(cluster.verdict())


def test_a_call_that_does_not_complete_behind_replays(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history()
    graphs = decode_graphs(cluster, 8)
    replay((own[0] for own in graphs), times=3)
    cluster.post(cluster.everybody, "tp:0", shape=(100, 8), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.seq) == ("stalled", 5 + 3 * 62 + 1)
