"""Replays of CUDA graphs in a ring: one record each, and every call of them when it is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ncclscope import Call, Rank
from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model.signature import extend, replayed, sign
from ncclscope.parity import sequence
from ncclscope.readers.ring.distinct import distinct_calls
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.ring import layout
from ncclscope.ring.graph_book import GraphCall
from ncclscope.ring.reader import RingFile
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.rings import SMALL, seal_header, tracer_in

pytestmark = pytest.mark.both_writers

Place = tuple[int | None, int, int, int]
"""Number of the graph, of the replay, of the call in the graph, and calls in the graph."""


@dataclass
class Program:
    """A program on two communicators that knows what it has posted, call by call."""

    tracer: Tracer
    posted: dict[str, list[tuple[int, Place | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comms = {key: self.tracer.communicator(key, f"{key}:0", [0, 1]) for key in "AB"}
        self.posted = {key: [] for key in self.comms}
        self.held: dict[int, Sequence[GraphCall]] = {}

    def post(self, key: str, rows: int) -> None:
        self.tracer.record(
            self.comms[key], "all_reduce", shape=(rows, 2), site=f"m.py:{rows % 5} f"
        )
        self.posted[key].append((sign("all_reduce", shape=(rows, 2)), None))

    def capture(self, keys: str, rows: int) -> TracedGraph:
        """Capture a call on each of some communicators, every fourth with a sizes list."""
        begun = self.tracer.graphs.begin()
        for number, key in enumerate(keys):
            fields = {
                "shape": (rows, 1 + number % 60),
                "site": f"m.py:{number % 7} g",
                "captured": True,
            }
            op = "all_reduce" if number % 4 else "all_gatherv"
            sizes = None if number % 4 else (rows, number % 60)
            assert self.tracer.record(self.comms[key], op, sizes=sizes, **fields) == -1
        graph = self.tracer.graphs.end(begun)
        self.held[graph.number] = begun.calls
        return graph

    def replay(self, graph: TracedGraph) -> int:
        position = graph.replay()
        calls = self.held[graph.number]
        for place, call in enumerate(calls, 1):
            key = "AB"[call.channel.index - 1]
            at = graph.number, graph.replays, place, len(calls)
            self.posted[key].append((replayed(call.signature), at))
        return position

    def at_random(self, steps: int, graphs: Sequence[TracedGraph], chance: random.Random) -> None:
        # Each call of a replay is compared, so that long graphs are replayed now and then only.
        weights = [1 if len(self.held[graph.number]) > 1000 else 8 for graph in graphs]
        for _ in range(steps):
            if chance.random() < 0.5:
                self.post(chance.choice("AB"), chance.randrange(1, 9))
            else:
                self.replay(*chance.choices(graphs, weights))


def program_in(directory: Path, capacity: int = SMALL) -> Program:
    return Program(tracer_in(directory, capacity=capacity, details={"boot_id": ""}))


def place_of(call: Call) -> Place | None:
    if call.replay is None:
        return None
    return call.graph, call.replay.number, call.replay.call, call.replay.calls


def check(program: Program, rank: Rank, chance: random.Random) -> None:
    """Compare all that can be asked of both logs with what was posted."""
    positions = []
    for key, wanted in program.posted.items():
        log = rank.logs[key]
        assert log.calls == len(wanted)
        hashes = [0]
        for signature, _ in wanted:
            hashes.append(extend(hashes[-1], signature))
        numbers = range(log.first - 1, log.calls + 1)
        some = chance.sample(numbers, min(200, len(numbers)))
        marked = numbers[-numbers[0] % layout.MARK_EVERY :: layout.MARK_EVERY]
        for seq in [numbers[0], *some, *marked, numbers[-1]]:
            assert log.fingerprint(seq) == hashes[seq]
        kept = wanted[log.first - 1 :]
        calls = list(log.span(log.first, log.calls + 1))
        assert [call.seq for call in calls] == list(range(log.first, log.calls + 1))
        assert [(call.signature, place_of(call)) for call in calls] == kept
        assert [call.sign() for call in calls] == [signature for signature, _ in kept]
        assert list(log.signatures(log.first, log.calls + 1)) == [s for s, _ in kept]
        assert list(log.sites(log.first, log.calls + 1)) == [call.site for call in calls]
        assert list(log.positions(log.first, log.calls + 1)) == [call.position for call in calls]
        for _ in range(30):
            low = chance.randrange(log.first, log.calls + 1)
            high = min(log.calls + 1, low + chance.randrange(1, 300))
            assert list(log.span(low, high)) == calls[low - log.first : high - log.first]
        found = distinct_calls(log)
        for place, call in zip(found.which, calls, strict=True):
            kind = found.kinds[place]
            assert (kind.op, kind.shape, kind.sizes) == (call.op, call.shape, call.sizes)
            assert (kind.replay is None) == (call.replay is None)
        positions += [call.position for call in calls]
    assert len(set(positions)) == len(positions)


GRAPHS = ("A", "ABAAB", "B" * 40, "AB" * 45, "A" * 2500)


@pytest.mark.parametrize(
    ("capacity", "steps"),
    [
        (SMALL, 300),
        (SMALL, 1500),
        pytest.param(SMALL, 2500, marks=pytest.mark.slow),
        pytest.param(2 * SMALL, 1500, marks=pytest.mark.slow),
    ],
)
def test_each_call_of_each_replay_is_read(rings: Path, capacity: int, steps: int) -> None:
    chance = random.Random(steps)
    program = program_in(rings, capacity)
    graphs = [program.capture(keys, rows) for rows, keys in enumerate(GRAPHS, 1)]
    program.at_random(steps, graphs, chance)

    rank = read_ring(Path(program.tracer.path))

    assert (rank.lost > 0) == (steps > capacity)
    check(program, rank, chance)
    assert {number: graph.length for number, graph in rank.graphs.items()} == {
        number: len(keys) for number, keys in enumerate(GRAPHS, 1)
    }


def test_the_stream_keeps_the_order_of_calls_within_a_replay(rings: Path) -> None:
    program = program_in(rings)
    program.replay(program.capture("ABBAB", 3))
    program.post("A", 1)

    rank = read_ring(Path(program.tracer.path))

    calls = [call for log in rank.logs.values() for call in log.span(1, log.calls + 1)]
    calls.sort(key=lambda call: call.position)
    assert [call.comm for call in calls] == [*"ABBAB", "A"]
    assert [call.replay.call if call.replay else None for call in calls] == [1, 2, 3, 4, 5, None]


def test_a_replay_takes_one_record_for_each_communicator(rings: Path) -> None:
    program = program_in(rings)
    one, two = program.capture("A" * 200, 1), program.capture("AB" * 100, 2)

    assert program.replay(one) == 0
    assert program.replay(two) == 1
    assert program.tracer.ring.position == 3
    program.tracer.complete(0)

    rank = read_ring(Path(program.tracer.path))
    assert {call.state.word for call in rank.logs["A"].span(1, 201)} == {"completed"}
    assert rank.logs["A"].call(201).state.word == "scheduled"


def test_graphs_that_are_alike_are_written_once(rings: Path) -> None:
    program = program_in(rings)
    program.capture("AB" * 31, 8)
    once = program.tracer.ring.graphs._used
    for _ in range(10):
        program.capture("AB" * 31, 8)

    head = layout.ENTRY.size + layout.GRAPH_HEAD.size
    assert program.tracer.ring.graphs._used == once + 10 * head


def test_a_graph_that_finds_no_room_is_recorded_call_by_call(rings: Path) -> None:
    program = program_in(rings)
    small = program.capture("AB", 1)
    graphs = [program.capture("AB" * 300, rows) for rows in range(1, 30)]
    room = len(read_ring(Path(program.tracer.path)).graphs)
    assert 1 < room < 30
    before = program.tracer.ring.position

    graphs[-1].replay()

    assert program.tracer.ring.position == before + 600
    program.replay(small)
    rank = read_ring(Path(program.tracer.path))
    log = rank.logs["A"]
    call = log.call(300)
    assert call.graph == 30
    assert call.replay is not None
    assert (call.replay.number, call.replay.call) == (0, 0)
    wanted = [replayed(c.signature) for c in program.held[30] if c.channel.index == 1]
    assert list(log.signatures(1, 301)) == wanted
    assert place_of(log.call(301)) == (1, 1, 1, 2)


def test_sends_and_receives_of_a_graph_are_recorded_one_by_one(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("A", "pp:0", [0, 1])
    begun = tracer.graphs.begin()
    tracer.record(comm, "all_reduce", shape=(2,), captured=True, site="x")
    tracer.record(comm, "send", shape=(4,), peer=1, captured=True, site="y")
    graph = tracer.graphs.end(begun)
    graph.replay()
    graph.replay()

    rank = read_ring(Path(tracer.path))

    assert rank.logs["A"].calls == 2
    sent = rank.p2p["A"]
    assert [(call.op, call.seq, call.graph, call.numel) for call in sent] == [
        ("send", 1, 1, 4),
        ("send", 2, 1, 4),
    ]
    assert all(call.replay is not None for call in sent)
    assert [rank.logs["A"].call(seq).position < sent[seq - 1].position for seq in (1, 2)] == [
        True
    ] * 2


def test_what_is_captured_belongs_to_the_graph_of_its_thread(rings: Path) -> None:
    import threading

    tracer = tracer_in(rings)
    comm = tracer.communicator("A", "tp:0", [0, 1])
    opened, posted = threading.Barrier(2), threading.Barrier(2)
    lengths = {}

    def run(name: str, count: int) -> None:
        begun = tracer.graphs.begin()
        opened.wait()
        for number in range(count):
            tracer.record(comm, "all_reduce", shape=(number,), captured=True, site=name)
        posted.wait()
        lengths[name] = len(begun.calls)
        tracer.graphs.end(begun)

    threads = [
        threading.Thread(target=run, args=("a", 3)),
        threading.Thread(target=run, args=("b", 5)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lengths == {"a": 3, "b": 5}
    assert comm.channel.seq == 0


def test_a_captured_call_outside_of_a_graph_counts_as_before(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("A", "tp:0", [0, 1])
    tracer.graphs.end(tracer.graphs.begin())
    assert tracer.record(comm, "all_reduce", shape=(2,), captured=True, site="x") == 0

    call = read_ring(Path(tracer.path)).logs["A"].call(1)

    assert (call.captured, call.replay) == (True, None)


def test_a_ring_of_a_version_to_come_is_refused(rings: Path) -> None:
    program = program_in(rings)
    path = Path(program.tracer.path)
    data = bytearray(path.read_bytes())
    data[8:12] = (layout.VERSION + 1).to_bytes(4, "little")
    seal_header(data)
    path.write_bytes(data)

    with pytest.raises(DamagedFileError, match="ring of version 4") as caught:
        RingFile(path)
    assert "versions 1 to 3" in caught.value.help


@pytest.mark.parametrize("part", ["graphs", "records"])
@pytest.mark.parametrize("seed", range(15))
def test_damage_is_an_error_or_nothing(rings: Path, seed: int, part: str) -> None:
    chance = random.Random(seed)
    program = program_in(rings)
    graphs = [program.capture(keys, rows) for rows, keys in enumerate(GRAPHS[:4], 1)]
    program.at_random(200, graphs, chance)
    ring = program.tracer.ring
    path = rings / "damaged.ring"
    data = bytearray(Path(program.tracer.path).read_bytes())
    start, size = ring.geometry.graphs, ring.graphs._used
    if part == "records":
        start, size = ring.geometry.records, ring.position * layout.RECORD.size
    for _ in range(chance.choice((1, 20))):
        data[start + chance.randrange(size)] = chance.randrange(256)
    path.write_bytes(data)

    try:
        rank = read_ring(path)
        for log in rank.logs.values():
            log.span(log.first, log.calls + 1)
            log.fingerprint(max(log.first - 1, log.calls // 2))
            distinct_calls(log)
        assert all(graph.length for graph in rank.graphs.values())
    except DamagedFileError:
        pass


def test_replays_too_long_for_a_line_per_call_are_reported(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_in(rings)
    graph = program.capture("A" * 40, 1)
    for _ in range(3):
        program.replay(graph)
    rank = read_ring(Path(program.tracer.path))
    stream = sequence.CallStream(rank)
    assert len(stream.calls) == 120
    assert stream.spell(stream.call(1)).endswith("] replayed")
    monkeypatch.setattr(sequence, "MOST_REPLAYED", 119)

    with pytest.raises(InputError, match="rank 0 kept 120 calls"):
        sequence.CallStream(rank)


def test_millions_of_replayed_calls_are_compared_without_expanding_them(rings: Path) -> None:
    import tracemalloc

    from ncclscope.engine.sequences.align import first_difference

    tracers = [
        tracer_in(rings, capacity=1 << 15, rank=rank, details={"boot_id": ""}) for rank in (0, 1)
    ]
    logs = []
    for rank, tracer in enumerate(tracers):
        comm: Comm = tracer.communicator("A", "tp:0", [0, 1])
        graphs = []
        for rows in (8, 16):
            begun = tracer.graphs.begin()
            for number in range(200):
                tracer.record(comm, "all_reduce", shape=(rows, number), captured=True, site="x")
            graphs.append(tracer.graphs.end(begun))
        for number in range(1 << 15):
            graphs[rank if number == 20_000 else 0].replay()
        logs.append(read_ring(Path(tracer.path)).logs["A"])
    tracemalloc.start()
    try:
        assert first_difference(logs[0], logs[1]) == (20_000 * 200 + 2, True)
        assert logs[0].calls == 200 << 15
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 << 20
