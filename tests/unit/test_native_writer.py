"""The writer in C stores the same bytes as the one in Python, which is the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from ncclscope import Tracer, native
from ncclscope.model.signature import sign
from ncclscope.ring import layout
from ncclscope.ring.native_writer import NativeWriter
from ncclscope.ring.writer import RingWriter
from tests.support.rings import SMALL, tracer_in

pytestmark = pytest.mark.skipif(native.core() is None, reason=native.why_not())

TEXTS = st.text(alphabet="aé\ud800😀_", max_size=6)
COUNTS = st.integers(0, 1 << 65)
CALLS = st.fixed_dictionaries(
    {"op": st.sampled_from(["all_reduce", "all_gatherv", "send", "broadcast"])},
    optional={
        "shape": st.lists(st.integers(0, 1 << 33), max_size=6),
        "dtype": TEXTS,
        "redop": TEXTS,
        "root": st.integers(-2, 1 << 32),
        "numel": COUNTS,
        "sizes": st.lists(st.integers(-(1 << 64), 1 << 64), max_size=5),
        "out_shape": st.lists(st.integers(0, 9), max_size=3),
        "site": TEXTS,
        "state": st.integers(0, 2),
        "captured": st.booleans(),
        "graph": st.integers(0, 1 << 33),
    },
)
STEPS = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 2), CALLS),
    st.tuples(st.just("many"), st.integers(0, 2), st.integers(1, 1500)),
    st.tuples(st.just("step"), st.integers(-1, 1 << 63), st.none() | st.integers(-1, 1 << 63)),
    st.tuples(st.just("advance"), st.integers(-2, 3000), st.integers(0, 255)),
    st.tuples(st.just("graph"), st.integers(0, 2), st.integers(1, 1200)),
    st.tuples(st.just("describe"), TEXTS, st.integers(0, 9000)),
    st.tuples(st.just("relabel"), st.integers(0, 2), TEXTS),
)


def apply(tracer: Tracer, comms: list[Any], step: tuple[Any, ...]) -> object:
    kind, first, second = step
    match kind:
        case "record":
            fields = dict(second)
            return tracer.record(comms[first], fields.pop("op"), **fields)
        case "many":
            return [tracer.record(comms[first], "barrier", site="s") for _ in range(second)][-1]
        case "step":
            return tracer.step(first, tokens=second, dummy=first % 2 == 0)
        case "advance":
            return tracer.ring.advance(first, second)
        case "graph":
            capture = tracer.graphs.begin()
            for number in range(second):
                tracer.record(comms[(first + number) % 2], "all_reduce", captured=True, site="g")
            graph = tracer.graphs.end(capture)
            return [graph.replay(), graph.replay()]
        case "describe":
            return tracer.describe(**{f"field {first}": "x" * second})
        case _:
            return tracer.relabel(comms[first], second)


@contextmanager
def writing(directory: Path, writer: type[RingWriter]) -> Iterator[Tracer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCLSCOPE_NATIVE", "1" if writer is NativeWriter else "0")
        details = {"pid": 1, "started_ns": 1}
        tracer = tracer_in(directory, details=details)
        assert type(tracer.ring) is writer
        yield tracer


def written(tracer: Tracer) -> bytes:
    """Return the file, with zero in place of each moment on the clock."""
    data = bytearray(Path(tracer.path).read_bytes())
    geometry = layout.Geometry.for_capacity(SMALL)
    for word in (layout.HEADER_HEARTBEAT, layout.HEADER_EXITED):
        for start in (word, layout.MIRROR + word):
            for offset in (start, start + layout.COMPLEMENTS):
                data[offset : offset + 8] = bytes(8)
    size = layout.RECORD.size
    for at in range(geometry.records, geometry.records + SMALL * size, size):
        record = bytes(data[at : at + size])
        if any(record):  # the check covers the time
            assert layout.sealed_record(record) == record
            data[at + 8 : at + 16] = bytes(8)
            data[at + layout.CHECK_OFFSET : at + size] = bytes(4)
    return bytes(data)


@hypothesis.settings(
    max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(steps=st.lists(STEPS, max_size=12))
def test_both_writers_store_the_same_bytes(steps: list[tuple[Any, ...]], rings: Path) -> None:
    results, files = [], []
    for writer in (RingWriter, NativeWriter):
        with writing(rings, writer) as tracer:
            names = [("k", "tp:0", [0, 1]), ("l", "é", range(5000)), ("m", "", [])]
            comms = [tracer.communicator(*name) for name in names]
            results.append([apply(tracer, comms, step) for step in steps])
            tracer.close()
            files.append(written(tracer))
        Path(tracer.path).unlink()

    assert results[0] == results[1]
    assert files[0] == files[1]


def test_lists_begin_again_at_the_same_place(rings: Path) -> None:
    files = []
    for writer in (RingWriter, NativeWriter):
        with writing(rings, writer) as tracer:
            comm = tracer.communicator("k")
            for number in range(9000):
                sizes = [number % 4500, *range(number % 40)]
                tracer.record(comm, "all_gatherv", shape=(1,), sizes=sizes, site="s")
            files.append(written(tracer))

    assert files[0] == files[1]


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "reduce_scatter", "send"])
def test_signatures_are_those_of_the_model(op: str) -> None:
    fields: dict[str, Any] = {"dtype": "bfloat16", "root": 1 if op == "broadcast" else None}
    signed = sign(op, numel=17, **fields)

    core: Any = native.core()
    agreed = "17" if op != "send" else ""
    assert core.sign(op, "bfloat16", "", -1 if fields["root"] is None else 1, agreed) == signed
