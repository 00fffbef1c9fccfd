"""Capture inside CUDA graphs, and the copy beside the main stream, on one GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import settings

from ncclscope_patches.routed_experts import RequestRows, RoutingShape, StepDelta
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.transfer import Flight
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from tests.routed.rows import SHAPE, forward, rows
from tests.routed.test_collector_machine import Scheduling

pytestmark = pytest.mark.gpu

TOKENS = 64
LONG = 2_000_000_000
"""Cycles that a stream is kept busy with: a second, where a step's launches take 1 ms."""
ALL = [RequestRows("a", 0, TOKENS)]


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    yield
    alarm("default")
    torch.cuda.synchronize()


def alarm(mode: str) -> None:
    """Set what torch does when it waits for a device."""
    with warnings.catch_warnings():
        # That it may miss some.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture
def buffer() -> CaptureBuffer:
    return CaptureBuffer(SHAPE, TOKENS, "cuda")


def take(flight: Flight | None) -> StepDelta:
    assert flight is not None
    return flight.take()


def step(worker: RoutedExpertsWorker, first: int) -> Flight | None:
    """Return a step of a full batch, all of which somebody wants."""
    worker.begin_step(ALL)
    forward(worker.capture, first, TOKENS)
    return worker.end_step()


class Graph:
    """A forward pass of fixed size, captured once.

    Args:
        buffer: What its layers write to.
        tokens: Of its batch, padding included.
    """

    def __init__(self, buffer: CaptureBuffer, tokens: int) -> None:
        self.buffer = buffer
        self.tokens = tokens
        shape = buffer.shape
        self.ids = torch.zeros(
            (tokens, shape.layers, shape.top_k), dtype=torch.int32, device=buffer.device
        )
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            buffer.begin()
            self._layers()
            buffer.end()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._layers()

    def _layers(self) -> None:
        for number in range(self.buffer.shape.layers):
            # What a router does: numbers that come into being inside the graph.
            self.buffer.layer(number)((self.ids + 0)[:, number])

    def run(self, first: int, tokens: int) -> None:
        """Replay it with tokens that are numbered from one on; the others are padding."""
        self.ids.fill_(-1)
        own = rows(first, tokens, self.buffer.shape).astype(np.int32)
        self.ids[:tokens].copy_(torch.from_numpy(own))
        self.graph.replay()


@pytest.mark.parametrize("experts", [128, 300, 65_536, 70_000])
def test_replays_of_a_graph_are_captured(experts: int) -> None:
    shape = RoutingShape(5, 4, experts)
    buffer = CaptureBuffer(shape, TOKENS, "cuda")
    graphs = [Graph(buffer, size) for size in (8, TOKENS)]
    worker = RoutedExpertsWorker(buffer)
    for number, (graph, tokens) in enumerate([(graphs[0], 5), (graphs[1], 60), (graphs[0], 8)]):
        worker.begin_step([RequestRows("a", 0, 2), RequestRows("b", 3, tokens - 3)])
        graph.run(100 * number, tokens)
        delta = take(worker.end_step())
        assert not delta.missing
        assert np.array_equal(delta.rows["a"], rows(100 * number, 2, shape))
        assert np.array_equal(delta.rows["b"], rows(100 * number + 3, tokens - 3, shape))


def test_padding_of_a_graph_is_missing(buffer: CaptureBuffer) -> None:
    graph = Graph(buffer, 8)
    worker = RoutedExpertsWorker(buffer)
    worker.begin_step([RequestRows("a", 0, 10)])
    graph.run(0, 6)
    assert take(worker.end_step()).missing["a"].tolist() == [False] * 6 + [True] * 4


def test_graphs_of_two_models_stay_apart() -> None:
    shapes = {"target": SHAPE, "draft": RoutingShape(1, 2, 128)}
    buffers = {name: CaptureBuffer(shape, TOKENS, "cuda") for name, shape in shapes.items()}
    graphs = {name: Graph(own, 8) for name, own in buffers.items()}
    workers = {name: RoutedExpertsWorker(own, model=name) for name, own in buffers.items()}
    for number, (name, graph) in enumerate(graphs.items()):
        workers[name].begin_step([RequestRows("a", 0, 8)])
        graph.run(200 * number, 8)
    for number, (name, worker) in enumerate(workers.items()):
        delta = take(worker.end_step())
        assert delta.model == name
        assert np.array_equal(delta.rows["a"], rows(200 * number, 8, shapes[name]))


@pytest.mark.parametrize("experts", [256, 300, 65_536, 70_000])
def test_numbers_that_do_not_fit_are_missing(experts: int) -> None:
    shape = RoutingShape(1, 2, experts)
    buffer = CaptureBuffer(shape, TOKENS, "cuda")
    worker = RoutedExpertsWorker(buffer)
    most = experts - 1
    cases = [(0, most), (most, 0), (-1, 0), (0, experts), (1 << 16, 0), (1 << 32, 0), (1, 2)]
    worker.begin_step([RequestRows("a", 0, len(cases))])
    buffer.layer(0)(torch.tensor(cases, device="cuda"))
    delta = take(worker.end_step())
    fits = [all(0 <= one < experts for one in case) for case in cases]
    missing = delta.missing["a"].tolist()
    assert missing == [not own for own in fits]
    for number, case in enumerate(cases):
        if fits[number]:
            assert delta.rows["a"][number].tolist() == [list(case)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32])
def test_routers_choose_the_type_of_their_numbers(dtype: torch.dtype) -> None:
    buffer = CaptureBuffer(RoutingShape(1, 2, 70_000), TOKENS, "cuda")
    worker = RoutedExpertsWorker(buffer)
    worker.begin_step([RequestRows("a", 0, 1)])
    buffer.layer(0)(torch.tensor([[3, 250]]).to(dtype).cuda())
    delta = take(worker.end_step())
    assert delta.rows["a"].tolist() == [[[3, 250]]]
    assert not delta.missing


def test_launching_a_step_waits_for_nothing(buffer: CaptureBuffer) -> None:
    graph = Graph(buffer, TOKENS)
    worker = RoutedExpertsWorker(buffer, slots=True)
    slot_mapping = torch.arange(TOKENS, device="cuda")
    worker.begin_step(ALL)
    take(worker.end_step(slot_mapping))
    own = torch.from_numpy(rows(0, TOKENS).astype(np.int32)).cuda()
    graph.ids.copy_(own)
    torch.cuda.synchronize()

    alarm("error")
    torch.cuda._sleep(LONG)
    worker.begin_step(ALL)
    graph.graph.replay()
    forward_on_device(buffer, own)
    flight = worker.end_step(slot_mapping)
    alarm("default")

    assert flight is not None
    assert not flight.ready
    assert not torch.cuda.current_stream().query()
    slot_mapping.fill_(7)
    delta = flight.take()
    assert np.array_equal(delta.rows["a"], rows(0, TOKENS))
    assert delta.slots["a"].tolist() == list(range(TOKENS))


def forward_on_device(buffer: CaptureBuffer, ids: torch.Tensor) -> None:
    for number in range(buffer.shape.layers):
        buffer.layer(number)(ids[:, number])


def test_the_main_stream_does_not_wait_for_the_copy(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, depth=2)
    assert worker.transfer is not None
    assert worker.transfer._stream is not None
    take(step(worker, 0))
    with torch.cuda.stream(worker.transfer._stream):
        torch.cuda._sleep(LONG)
    flights = []
    for number in range(3):
        flights.append(step(worker, 100 * number))
    torch.cuda.current_stream().synchronize()

    first, second, third = flights
    assert first is not None
    assert second is not None
    assert not first.ready
    assert not second.ready
    # Of two places none is free: the third step is left out, rather than waited for.
    assert third is None
    assert worker.transfer.dropped == 1
    assert np.array_equal(take(second).rows["a"], rows(100, TOKENS))
    assert np.array_equal(take(first).rows["a"], rows(0, TOKENS))


def test_a_place_of_an_abandoned_step_is_not_taken_while_it_is_copied(
    buffer: CaptureBuffer,
) -> None:
    worker = RoutedExpertsWorker(buffer, depth=1)
    assert worker.transfer is not None
    assert worker.transfer._stream is not None
    take(step(worker, 0))
    with torch.cuda.stream(worker.transfer._stream):
        torch.cuda._sleep(LONG)
    for number in range(2):
        flight = step(worker, number)
        assert (flight is None) is (number == 1)
        del flight
    assert worker.transfer.free == 1
    torch.cuda.synchronize()
    assert np.array_equal(take(step(worker, 50)).rows["a"], rows(50, TOKENS))


def allocations() -> int:
    count: int = torch.cuda.memory_stats()["allocation.all.allocated"]
    return count


def test_memory_of_the_device_is_taken_at_the_start_alone(buffer: CaptureBuffer) -> None:
    graph = Graph(buffer, TOKENS)
    worker = RoutedExpertsWorker(buffer)
    ids = torch.zeros((TOKENS, SHAPE.layers, SHAPE.top_k), dtype=torch.int64, device="cuda")
    for wanted in (ALL, []):
        for _ in range(3):
            before = allocations()
            worker.begin_step(wanted)
            graph.graph.replay()
            if not wanted:
                forward_on_device(buffer, ids)
            flight = worker.end_step()
            assert allocations() == before
            assert (flight is None) is (not wanted)
            if flight is not None:
                flight.take()


def test_hosts_buffers_are_pinned(buffer: CaptureBuffer) -> None:
    worker = RoutedExpertsWorker(buffer, slots=True)
    assert worker.transfer is not None
    for place in worker.transfer._free:
        assert all(part.is_pinned() for part in place.pinned)


class OnGpu(Scheduling):
    device = "cuda"


TestOnGpu = OnGpu.TestCase
TestOnGpu.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
