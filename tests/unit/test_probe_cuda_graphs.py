"""The probe of CUDA graphs.

torch's class cannot be instantiated where there is no CUDA. A class with the same methods takes
its place here; what is patched, by whom calls are posted and where they are recorded is real.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ncclscope import Rank
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing import session
from ncclscope_patches.probes import recording
from ncclscope_patches.probes.cuda_graphs import CudaGraphProbe
from ncclscope_patches.vllm.pynccl import PyNcclProbe

torch = pytest.importorskip("torch")


class Stream:
    """What CUDA would know: whether the stream is being captured."""

    capturing = False


class CUDAGraph:
    """torch's class, without a device."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if Stream.capturing:
            raise RuntimeError("a capture is under way")
        Stream.capturing = True

    def capture_end(self) -> None:
        Stream.capturing = False
        if self.fails:
            raise RuntimeError("the capture was invalidated")

    def replay(self) -> None:
        return None

    def reset(self) -> None:
        return None


class PyNcclCommunicator:
    """vLLM's class, without a device."""

    def __init__(self, number: int) -> None:
        self.disabled = False
        self.group = None
        self.unique_id = SimpleNamespace(internal=bytes([number] * 128))

    def all_reduce(
        self, in_tensor: Any, out_tensor: Any = None, op: Any = "sum", stream: Any = None
    ) -> Any:
        return out_tensor


class StandInProbe(PyNcclProbe):
    target = "tests.stand_in"


@pytest.fixture
def traced(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with both classes, probed."""
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    monkeypatch.setattr(session, "_tracer", None)
    monkeypatch.setattr(recording, "is_capturing", lambda: Stream.capturing)
    Stream.capturing = False
    module: Any = ModuleType("tests.stand_in")
    module.CUDAGraph = type("CUDAGraph", (CUDAGraph,), {})
    module.PyNcclCommunicator = type(
        "PyNcclCommunicator", (PyNcclCommunicator,), {"all_reduce": PyNcclCommunicator.all_reduce}
    )
    module.NCCLLibrary = type("NCCLLibrary", (), {})
    probes = StandInProbe(), CudaGraphProbe()
    for probe in probes:
        probe.active = True
        probe.install(module)
    module.probe = probes[1]
    yield module
    for probe in probes:
        probe.revert()


def rank_of() -> Rank:
    tracer = session.current()
    assert tracer is not None
    return read_ring(Path(tracer.path))


def captured(module: Any, comm: Any, *rows: int, graph: Any = None) -> Any:
    graph = module.CUDAGraph() if graph is None else graph
    graph.capture_begin()
    for count in rows:
        comm.all_reduce(torch.zeros(count))
    graph.capture_end()
    return graph


def test_what_is_captured_is_posted_by_each_replay(traced: Any) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    one, two = captured(traced, comm, 1, 2), captured(traced, comm, 3)
    for graph in (two, one, two):
        graph.replay()
    comm.all_reduce(torch.zeros(6))

    (log,) = rank_of().logs.values()

    calls = log.span(1, log.calls + 1)
    assert [call.numel for call in calls] == [5, 3, 1, 2, 3, 6]
    assert [call.graph for call in calls] == [None, 2, 1, 1, 2, None]
    numbers = [call.replay.number if call.replay else 0 for call in calls]
    assert numbers == [0, 1, 1, 1, 2, 0]
    assert not any(call.captured for call in calls)
    assert {call.site.split(":")[0] for call in calls if call.site} == {"test_probe_cuda_graphs.py"}


def test_a_capture_that_fails_leaves_nothing(traced: Any) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    graph = traced.CUDAGraph(fails=True)
    with pytest.raises(RuntimeError, match="invalidated"):
        captured(traced, comm, 1, 2, graph=graph)
    graph.replay()
    good = captured(traced, comm, 3)
    Stream.capturing = True
    with pytest.raises(RuntimeError, match="under way"):
        good.capture_begin()
    Stream.capturing = False
    comm.all_reduce(torch.zeros(6))

    (log,) = rank_of().logs.values()

    assert [call.numel for call in log.span(1, log.calls + 1)] == [5, 6]
    assert traced.probe.active


def test_a_graph_that_is_captured_anew_replays_what_it_holds_now(traced: Any) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    graph = captured(traced, comm, 1)
    graph.replay()
    graph.reset()
    graph.replay()  # torch refuses that; it posts nothing
    captured(traced, comm, 2, 3, graph=graph)
    graph.replay()

    (log,) = rank_of().logs.values()

    assert [call.numel for call in log.span(1, log.calls + 1)] == [5, 1, 2, 3]
    assert log.call(3).graph == 2


def test_graphs_without_collectives_and_those_that_are_gone(traced: Any) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    empty, graph = captured(traced, comm), captured(traced, comm, 1)
    empty.replay()

    assert len(traced.probe._graphs) == 1
    del graph
    gc.collect()
    assert not traced.probe._graphs
    assert rank_of().records == 1


def test_without_communicators_no_ring_is_made(traced: Any, rings: Path) -> None:
    graph = traced.CUDAGraph()
    graph.capture_begin()
    graph.capture_end()
    graph.replay()

    assert os.listdir(rings) == []


def test_the_fault_of_a_record_is_not_the_programs(
    traced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    graph = captured(traced, comm, 1)

    def break_(*_arguments: object) -> int:
        raise OSError("no ring")

    tracer = session.current()
    assert tracer is not None
    monkeypatch.setattr(tracer.ring, "post_replay", break_)
    graph.replay()

    assert not traced.probe.active
    assert rank_of().details["probe_failed"] == "cuda_graphs: OSError: no ring"


def test_calls_of_the_host_are_carried_out_while_a_graph_is_captured(traced: Any) -> None:
    comm = traced.PyNcclCommunicator(1)
    comm.all_reduce(torch.zeros(5))
    tracer = session.current()
    assert tracer is not None
    host = tracer.communicator("gloo", "world", [0, 1], "gloo")
    handle = recording.Handle(tracer, host, waits=True)
    graph = traced.CUDAGraph()
    graph.capture_begin()
    position = recording.record(handle, ("barrier",), sys._getframe())
    graph.capture_end()

    assert position == 1
    assert rank_of().logs["gloo"].calls == 1


def test_torchs_own_class_is_patched_and_put_back() -> None:
    from torch.cuda import graphs

    names = ("capture_begin", "capture_end", "replay", "reset")
    before = [getattr(graphs.CUDAGraph, name) for name in names]
    probe = CudaGraphProbe()
    probe.apply()

    assert all(probe.has_replaced(getattr(graphs.CUDAGraph, name)) for name in names)
    probe.revert()
    assert [getattr(graphs.CUDAGraph, name) for name in names] == before
