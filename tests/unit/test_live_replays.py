"""Replays of CUDA graphs where a job is read while it runs: watch and the guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.errors import DivergenceError
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing import warning
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer
from ncclscope.watch.watch import Watcher
from tests.support.rings import post, tracer_in


def captured(tracer: Tracer, comm: Comm, rows: int, calls: int = 62) -> TracedGraph:
    begun = tracer.graphs.begin()
    for _ in range(calls):
        tracer.record(comm, "all_reduce", shape=(rows, 2), captured=True, site="layer.py:1 f")
    return tracer.graphs.end(begun)


def ranks_in(directory: Path, count: int) -> list[tuple[Tracer, Comm, list[TracedGraph]]]:
    """Ranks that have captured two graphs each."""
    found = []
    for rank in range(count):
        tracer = tracer_in(directory, rank=rank, world_size=count)
        comm = tracer.communicator("key", "tp:0", range(count))
        found.append((tracer, comm, [captured(tracer, comm, rows) for rows in (8, 16)]))
    return found


def test_the_hash_after_each_call_of_a_replay_is_known(rings: Path) -> None:
    ((tracer, comm, graphs),) = ranks_in(rings, 1)
    cursor = RingCursor(Path(tracer.path))
    for number in range(1, 40):
        graphs[number % 2].replay()
        if number % 3 == 0:
            post(tracer, comm, number)
        cursor.poll(float(number))

    log = read_ring(Path(tracer.path)).logs["key"]

    assert cursor.comm_cursors["key"].seq == log.calls == 39 * 62 + 13
    assert [cursor.hash_at("key", seq) for seq in range(0, log.calls + 1, 17)] == [
        log.fingerprint(seq) for seq in range(0, log.calls + 1, 17)
    ]
    last = cursor.last("key")
    assert last is not None
    assert last.op == log.call(log.calls).op


def test_watch_sees_replays_go_on_and_diverge(rings: Path) -> None:
    group = ranks_in(rings, 3)
    now = [100.0]
    watcher = Watcher(rings, clock=lambda: now[0])

    def poll() -> str:
        now[0] += 0.1
        return watcher.poll().status

    assert poll() == "unknown"  # no collective was posted yet
    for number in range(30):
        for _, _, graphs in group:
            graphs[number % 2].replay()
        assert poll() in ("ok", "unknown")
    assert poll() == "ok"
    for rank, (_, _, graphs) in enumerate(group):
        graphs[rank == 1].replay()

    assert poll() == "diverged"
    verdict = watcher.poll().verdict
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("capture_mismatch", (1,))


@pytest.fixture
def guarded(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tracer, Comm, list[TracedGraph]]]:
    monkeypatch.setattr(warning, "_warned", set())
    monkeypatch.setenv("NCCLSCOPE_GUARD", "raise")
    return ranks_in(rings, 3)


def test_the_guard_leaves_ranks_alone_that_replay_the_same(
    guarded: list[tuple[Tracer, Comm, list[TracedGraph]]],
) -> None:
    for number in range(1, 120):
        for tracer, comm, graphs in guarded:
            graphs[number % 2].replay()
            if number % 5 == 0:
                post(tracer, comm, number)

    assert all(tracer._guard is not None and tracer._guard.active for tracer, _, _ in guarded)


def test_the_guard_stops_a_rank_before_it_replays_another_graph(
    guarded: list[tuple[Tracer, Comm, list[TracedGraph]]],
) -> None:
    for _ in range(40):
        for _, _, graphs in guarded:
            graphs[0].replay()
    for _, _, graphs in guarded[:2]:
        graphs[0].replay()

    with pytest.raises(DivergenceError) as caught:
        guarded[2][2][1].replay()

    assert caught.value.seq == 40 * 62 + 1
    assert "replay 41 of graph 1, call 1 of 62" in caught.value.posted[0]
    assert "replay 1 of graph 2, call 1 of 62" in caught.value.posted[2]


def test_the_guard_leaves_pieces_and_the_whole_alone(rings: Path, guarded: object) -> None:
    group = []
    for rank in range(2):
        tracer = tracer_in(rings, rank=rank, world_size=2)
        comm = tracer.communicator("other", "ep:0", range(2))
        group.append((tracer, [captured(tracer, comm, 4, 31) for _ in range(2)]))
    pieces = group[0][1]
    whole = captured(group[1][0], group[1][0].communicator("other"), 4, 62)
    for _ in range(40):
        for piece in pieces:
            piece.replay()
        whole.replay()

    assert all(tracer._guard is not None and tracer._guard.active for tracer, _ in group)
