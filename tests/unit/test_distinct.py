"""Calls of a log by their kind: the same as if each had been decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ncclscope.model import Call
from ncclscope.parity.sequence import CallStream, Vocabulary
from ncclscope.readers.ring.distinct import distinct_calls, group_calls
from tests.support.rings import read, tracer_in

CALLS: tuple[dict[str, Any], ...] = (
    {"op": "all_reduce", "redop": "sum", "dtype": "float32", "shape": (4, 6)},
    # As many elements: the same to the members of a communicator, not the same program.
    {"op": "all_reduce", "redop": "sum", "dtype": "float32", "shape": (6, 4)},
    {"op": "all_reduce", "redop": "max", "dtype": "float32", "shape": (4, 6)},
    {"op": "all_gatherv", "dtype": "int32", "shape": (3, 2), "sizes": (3, 5)},
    {"op": "all_gatherv", "dtype": "int32", "shape": (3, 2), "sizes": (3, 4)},
    {"op": "broadcast", "dtype": "int32", "shape": (1, 2, 3, 4, 5), "root": 1},
    {"op": "all_reduce", "redop": "sum", "dtype": "float32", "shape": (4, 6), "captured": True},
    {"op": "scatter", "dtype": "int32", "root": 0, "out_shape": (2, 2)},
    {"op": "barrier"},
)


def ring(directory: Path, rounds: int = 3, *, messages: bool = False) -> Path:
    tracer = tracer_in(directory)
    comms = [tracer.communicator(key, f"{key}:0", (0, 1)) for key in ("tp", "dp")]
    for number in range(rounds):
        for call in CALLS:
            parameters = dict(call)
            tracer.record(
                comms[number % 2], parameters.pop("op"), site=f"m.py:{number} f", **parameters
            )
            if messages:
                tracer.record(comms[0], "send", shape=(2,), dtype="int8", peer=1)
    tracer.close()
    return next(directory.glob("*.ring"))


def parameters(call: Call) -> tuple[object, ...]:
    return (
        *(call.op, call.comm, call.dtype, call.redop, call.root, call.peer, call.numel),
        *(call.shape, call.sizes, call.out_shape, call.captured),
    )


def test_kinds_of_a_ring_are_its_calls(tmp_path: Path) -> None:
    rank = read(ring(tmp_path))

    for log in rank.logs.values():
        calls = log.span(log.first, log.calls + 1)
        found = distinct_calls(log)
        same = [parameters(found.kinds[kind]) for kind in found.which]
        assert same == [parameters(call) for call in calls]
        assert found.positions.tolist() == [call.position for call in calls]
        decoded = group_calls(calls)
        assert [parameters(kind) for kind in decoded.kinds] == [*map(parameters, found.kinds)]
        assert decoded.which.tolist() == found.which.tolist()
        assert len({*map(parameters, found.kinds)}) == len(found.kinds) == len(CALLS)


def test_a_stream_is_all_calls_in_the_order_of_posting(tmp_path: Path) -> None:
    rank = read(ring(tmp_path, messages=True))
    stream = CallStream(rank)

    words = Vocabulary()
    lines = [words.texts[line] for line in stream.lines(words)]

    every = [call for log in rank.logs.values() for call in log.span(1, log.calls + 1)]
    every += [call for sent in rank.p2p.values() for call in sent]
    every.sort(key=lambda call: call.position)
    assert list(stream.calls) == every
    names = stream.roles.names
    assert names == {"tp": "tp", "dp": "dp"}
    assert lines == [f"{names[call.comm]} {stream.spell(call)}" for call in every]
    assert list(stream.on("dp")) == [call for call in every if call.comm == "dp"]
    on = [words.texts[line] for line in stream.lines_on("dp", words)]
    assert on == [stream.spell(call) for call in stream.on("dp")]
    assert stream.lines_on("none", words) == []


def test_a_ring_of_nothing_is_a_stream_of_nothing(tmp_path: Path) -> None:
    tracer_in(tmp_path).close()
    stream = CallStream(read(next(tmp_path.glob("*.ring"))))

    assert (list(stream.calls), stream.lines(Vocabulary())) == ([], [])
