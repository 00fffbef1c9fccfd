"""What the ranks of tests/gpu/test_device_progress.py do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ncclscope.ring.channel import Channel
from ncclscope.tracing.device.driver import Tail
from ncclscope.tracing.device.markers import DeviceMarks, Marks
from tests.gpu.graph_programs import DIVERGING

__all__ = ["BEFORE", "CALLS", "asleep", "cost", "outside"]

BEFORE = 20
"""Calls that all ranks post before one of them does something else."""
CALLS = 64
"""All-reduces of 8 bytes to 64 KB in a graph."""
ROUNDS, REPLAYS = 15, 20


def _calls(count: int) -> None:
    tensor = torch.ones(64, device="cuda")
    for _ in range(count):
        dist.all_reduce(tensor)


def asleep(rank: int) -> None:
    """Leave out, on one rank, the call in which the others wait."""
    _calls(BEFORE)
    torch.cuda.synchronize()
    if rank == DIVERGING:
        time.sleep(600)
    _calls(3)
    torch.cuda.synchronize()


def outside(rank: int) -> None:
    """Post the same on all ranks, but on one behind a kernel that takes minutes."""
    _calls(BEFORE)
    torch.cuda.synchronize()
    if rank == DIVERGING:
        for _ in range(200):
            torch.cuda._sleep(1 << 31)
    _calls(3)
    torch.cuda.synchronize()


def cost(rank: int) -> dict[str, Any]:
    """Measure what markers cost, in one process and alternating.

    Returns:
        ``node``: microseconds of the device a call in a graph, by what is around it;
        ``between`` is a marker that the next call has to wait for, ``finished`` and ``entered``
        those beside it, ``both`` those that it has to wait for. ``counted``: by how much the count
        grows a call.
        ``launch``: nanoseconds of the host a marker. ``call``: nanoseconds of the host an eager
        all_reduce, counted, recorded only, and neither.
    """
    from ncclscope.tracing import session
    from ncclscope_patches import registry
    from ncclscope_patches.probes import process_groups

    _calls(3)
    torch.cuda.synchronize()
    tracer = session.opened()
    assert tracer is not None
    device = tracer.device
    handle = process_groups.handles.of(dist.group.WORLD)
    assert device is not None
    assert handle.marks is not None
    assert not handle.marks.is_lost

    tensor = torch.ones(2, device="cuda")
    call = {"counted": _host(lambda: dist.all_reduce(tensor))}
    marks, handle.marks = handle.marks, None
    call["recorded"] = _host(lambda: dist.all_reduce(tensor))
    registry.revert_all()
    call["neither"] = _host(lambda: dist.all_reduce(tensor))
    finish = device.launcher(marks.channel, 0, 1)
    stream = torch.cuda.current_stream().cuda_stream
    launch = _host(lambda: finish(stream))

    graphs = {
        "without": _graph(lambda stream: None, lambda stream: None),
        "between": _graph(lambda stream: None, finish),
        "finished": _graph(lambda stream: None, _Beside(device, marks.channel).finish),
        "entered": _graph((beside := _Beside(device, marks.channel)).enter, beside.finish),
        "both": _graph(device.launcher(marks.channel, 1, 1), finish),
    }
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            began.record()
            for _ in range(REPLAYS):
                graph.replay()
            ended.record()
            ended.synchronize()
            taken[name].append(began.elapsed_time(ended) * 1e3 / REPLAYS / CALLS)
    return {
        "counted": {name: _counted(graph, marks) for name, graph in graphs.items()},
        "node": {name: (min(each), statistics.median(each)) for name, each in taken.items()},
        "ratios": {
            name: statistics.median(
                one / bare for one, bare in zip(taken[name], taken["without"], strict=True)
            )
            for name in graphs
        },
        "launch": launch,
        "call": call,
    }


def _counted(graph: Any, marks: Marks) -> float:
    """Return by how much a replay of a graph adds to the count, for each of its calls."""
    before = marks.finished
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return (marks.finished - before) / REPLAYS / CALLS


class _Beside:
    """Puts markers of a communicator into one graph."""

    def __init__(self, device: DeviceMarks, channel: Channel) -> None:
        self._attach = [device.attacher(channel, which, 1) for which in (0, 1)]
        self._tail: Tail | None = None

    def finish(self, stream: int) -> None:
        self._put(0, stream)

    def enter(self, stream: int) -> None:
        self._put(1, stream)

    def _put(self, which: int, stream: int) -> None:
        self._tail = self._attach[which](stream, self._tail)
        assert self._tail is not None


def _graph(before: Callable[[int], object], behind: Callable[[int], object]) -> Any:
    """Capture all-reduces of 8 bytes to 64 KB, with something around each."""
    tensors = [
        torch.zeros(2 << (13 * number // (CALLS - 1)), device="cuda") for number in range(CALLS)
    ]
    for tensor in tensors:
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        stream = torch.cuda.current_stream().cuda_stream
        for tensor in tensors:
            before(stream)
            dist.all_reduce(tensor)
            behind(stream)
    torch.cuda.synchronize()
    return graph


def _host(action: Callable[[], object], count: int = 100, rounds: int = 15) -> tuple[float, float]:
    """Return the least and the median nanoseconds of the host, in short bursts."""
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(count):
            action()
        taken.append((time.perf_counter_ns() - began) / count)
    torch.cuda.synchronize()
    return min(taken), statistics.median(taken)
