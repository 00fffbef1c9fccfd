"""What is copied, when, and that nothing in flight is overwritten."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ncclscope.errors import UsageError
from ncclscope_patches import routed_experts
from ncclscope_patches.routed_experts import RequestRows
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.transfer import Flight
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from tests.routed.rows import SHAPE, forward, rows

TOKENS = 40


class Ops(TorchDispatchMode):
    """Lists what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # What is given its place allocates none.
        self.names.append(f"{name} into" if (kwargs or {}).get("out") is not None else name)
        return func(*args, **(kwargs or {}))


@contextmanager
def listed() -> Iterator[list[str]]:
    with Ops() as ops:
        yield ops.names


@pytest.fixture
def buffer() -> CaptureBuffer:
    return CaptureBuffer(SHAPE, TOKENS)


def step(
    worker: RoutedExpertsWorker, first: int, own: list[RequestRows], batch: int = TOKENS
) -> Flight | None:
    worker.begin_step(own)
    forward(worker.capture, first, batch)
    return worker.end_step()


def test_each_request_gets_its_rows(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer)
    flight = step(worker, 0, [RequestRows("b", 9, 4), RequestRows("a", 2, 3)])
    assert flight is not None
    assert flight.ready
    delta = flight.take()
    assert {name: len(ids) for name, ids in delta.rows.items()} == {"a": 3, "b": 4}
    assert np.array_equal(delta.rows["a"], rows(2, 3))
    assert np.array_equal(delta.rows["b"], rows(9, 4))
    assert not delta.missing
    assert not delta.slots
    assert worker.transfer is not None
    # Nobody else's rows were copied.
    assert worker.transfer.copied_rows == 7


@given(data=st.data())
def test_whatever_the_batch_looks_like(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, TOKENS), min_size=2, max_size=TOKENS)))
    own = [
        RequestRows(f"r{first}", first, last - first)
        for first, last in pairwise(cuts)
        if data.draw(st.booleans(), label=f"{first} to {last}")
    ]
    worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS))
    flight = step(worker, 0, data.draw(st.permutations(own)))
    assert (flight is None) is (not own)
    if flight is not None:
        delta = flight.take()
        assert set(delta.rows) == {one.request for one in own}
        for one in own:
            assert np.array_equal(delta.rows[one.request], rows(one.first, one.count))


def test_a_step_in_flight_is_not_overwritten(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, depth=2, slots=True)
    slot_mapping = torch.arange(TOKENS)
    own = [RequestRows("a", 0, TOKENS)]
    flights = []
    for number in range(2):
        worker.begin_step(own)
        forward(buffer, 100 * number, TOKENS)
        slot_mapping.fill_(number)
        flights.append(worker.end_step(slot_mapping))
        own[0] = RequestRows("b", 0, 1)  # The scheduler's list goes on to the next step.
    worker.begin_step([RequestRows("c", 0, 1)])
    forward(buffer, 300, TOKENS)
    slot_mapping.fill_(9)
    assert [set(one.take().rows) for one in flights[1:] if one] == [{"b"}]
    assert flights[0] is not None
    delta = flights[0].take()
    assert np.array_equal(delta.rows["a"], rows(0, TOKENS))
    assert delta.slots["a"].tolist() == [0] * TOKENS


def test_rows_that_were_taken_stay_as_they_are(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, depth=1)
    flight = step(worker, 0, [RequestRows("a", 0, 5)])
    assert flight is not None
    delta = flight.take()
    again = step(worker, 100, [RequestRows("b", 0, 5)])
    assert again is not None
    assert np.array_equal(delta.rows["a"], rows(0, 5))
    with pytest.raises(UsageError, match="can be taken once"):
        flight.take()


def test_without_a_free_place_a_step_is_dropped_and_counted(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, depth=2)
    assert worker.transfer is not None
    flights = [step(worker, 10 * own, [RequestRows("a", 0, 5)]) for own in range(3)]
    assert flights[2] is None
    assert (worker.transfer.started, worker.transfer.dropped, worker.transfer.free) == (2, 1, 0)
    assert flights[0] is not None
    flights[0].take()
    assert worker.transfer.free == 1
    last = step(worker, 70, [RequestRows("a", 0, 5)])
    assert last is not None
    assert np.array_equal(last.take().rows["a"], rows(70, 5))
    assert flights[1] is not None
    assert np.array_equal(flights[1].take().rows["a"], rows(10, 5))


def test_a_flight_that_nobody_takes_gives_its_place_back(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, depth=1)
    assert worker.transfer is not None
    for number in range(3):
        flight = step(worker, number, [RequestRows("a", 0, 5)])
        assert flight is not None
        assert worker.transfer.free == 0
        del flight
        assert worker.transfer.free == 1


def test_a_step_that_nobody_wants_touches_no_tensor(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, slots=True)
    slot_mapping = torch.arange(TOKENS)
    ids = torch.zeros(TOKENS, SHAPE.top_k, dtype=torch.int64)
    layers = [buffer.layer(number) for number in range(SHAPE.layers)]
    with listed() as ops:
        for _ in range(10):
            worker.begin_step([])
            for layer in layers:
                layer(ids)
            assert worker.end_step(slot_mapping) is None
    assert ops == []
    assert worker.transfer is not None
    assert (worker.transfer.started, worker.transfer.copied_rows) == (0, 0)


def test_a_step_that_somebody_wants_reads_nothing_and_allocates_nothing(
    buffer: CaptureBuffer,
) -> None:
    worker = RoutedExpertsWorker(buffer)
    ids = torch.from_numpy(rows(0, TOKENS).astype(np.int64))
    with listed() as around:
        worker.begin_step([RequestRows("a", 0, 5), RequestRows("b", 9, 2)])
    with listed() as inside:
        for number in range(SHAPE.layers):
            buffer.layer(number)(ids[:, number])
    with listed() as after:
        flight = worker.end_step()
    views = {"slice", "select", "permute", "detach", "alias"}
    into = {f"{name} into" for name in ("amin", "amax", "lt", "gt")}
    assert set(around + after) <= {"fill_", "copy_", "logical_or_", *into, *views}
    assert "_local_scalar_dense" not in inside
    assert flight is not None


def test_a_request_sends_its_own_rows_alone(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer)
    flight = step(worker, 0, [RequestRows("a", 0, 2), RequestRows("b", 2, TOKENS - 2)])
    assert flight is not None
    delta = flight.take()
    # As vLLM does on the way from the worker to the scheduler.
    sent = pickle.dumps(replace(delta, rows={"a": delta.rows["a"]}), protocol=5)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).rows["a"], rows(0, 2))


def test_ranks_that_do_not_send_copy_nothing(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, sends=False)
    worker.begin_step([RequestRows("a", 0, 5)])
    assert worker.wanted
    # They write all the same: putting sequence shards together takes all ranks of a replica.
    assert buffer.writes
    assert worker.end_step() is None
    assert not buffer.writes
    assert worker.transfer is None


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("launched", [True, False])
def test_engines_run_in_inference_mode_here_and_there(made: bool, launched: bool) -> None:
    with torch.inference_mode(made):
        worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS), slots=True)
    for number in range(2):
        with torch.inference_mode(launched):
            worker.begin_step([RequestRows("a", 0, 5)])
        with torch.inference_mode():
            forward(worker.capture, 10 * number, TOKENS)
            slot_mapping = torch.arange(TOKENS)
        with torch.inference_mode(launched):
            flight = worker.end_step(slot_mapping)
        assert flight is not None
        delta = flight.take()
        assert np.array_equal(delta.rows["a"], rows(10 * number, 5))
        assert delta.slots["a"].tolist() == list(range(5))


def test_a_default_device_is_none_of_its_business() -> None:
    with torch.device("meta"):
        worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS, "cpu"))
    flight = step(worker, 0, [RequestRows("a", 0, 5)])
    assert flight is not None
    assert np.array_equal(flight.take().rows["a"], rows(0, 5))


def test_a_step_that_failed_is_forgotten(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer)
    worker.begin_step([RequestRows("a", 0, 5)])
    with pytest.raises(UsageError, match="another has not ended"):
        worker.begin_step([RequestRows("a", 0, 5)])
    worker.drop_step()
    assert not buffer.writes
    assert worker.end_step() is None


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([RequestRows("a", 0, 41)], "request 'a' cannot have 41 rows from row 0 on, of 40"),
        ([RequestRows("a", 0, 0)], "cannot have 0 rows"),
        ([RequestRows("a", -1, 2)], "from row -1 on"),
        ([RequestRows("a", 0, 3), RequestRows("b", 2, 1)], "'b' cannot have 1 rows from row 2"),
        ([RequestRows("a", 0, 3), RequestRows("a", 3, 1)], "in one piece"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    buffer: CaptureBuffer, own: list[RequestRows], message: str
) -> None:
    worker = RoutedExpertsWorker(buffer)
    with pytest.raises(UsageError, match=message):
        worker.begin_step(own)
    assert not buffer.writes


def test_slots_come_along_where_they_were_agreed_on(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, slots=True)
    worker.begin_step([RequestRows("a", 2, 2)])
    with pytest.raises(UsageError, match="with slots as it was agreed on"):
        worker.end_step()
    with pytest.raises(UsageError, match="0 steps in flight"):
        RoutedExpertsWorker(buffer, depth=0)


def test_no_module_on_the_way_waits_for_a_device() -> None:
    # One wait there is: that for the step's own copy, where its output is put together.
    found = []
    for name in ("capture", "layers", "layouts", "transfer", "worker", "collector", "records"):
        path = Path(routed_experts.__file__).with_name(f"{name}.py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {
                *("cpu", "item", "tolist", "nonzero", "synchronize", "wait_stream", "wait"),
            }:
                found.append((name, node.attr))
    assert found == [("transfer", "synchronize")]
