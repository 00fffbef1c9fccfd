"""A device without a GPU: streams that run markers on request, into the real ring.

What counts is as on a GPU: a marker runs when all before it on its stream has, adds to a count,
and stores count and clock into the slot of the mapped file.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.tracing.device.driver import Attacher, Launcher, Tail
from ncclscope.tracing.device.markers import DeviceMarks, Marks
from ncclscope.tracing.graphs import GraphCapture, TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["HostDevice", "post"]

STREAM = 7


class HostDevice(DeviceMarks):
    """Plays the device of one process."""

    def __init__(self, tracer: Tracer, *, enters: bool = False) -> None:
        assert tracer.ring.slots is not None
        super().__init__(tracer, tracer.ring.slots, enters=enters)
        tracer.device = self
        self.streams: dict[int, deque[Callable[[], None]]] = {}
        self.holding: list[Callable[[], None]] | None = None
        self.counts: dict[int, int] = {}
        self.refuses = 0
        self.attaches_nothing = False
        self.tails: list[Tail | None] = []
        """Dependencies of each marker of a graph, besides its call."""

    def prepare(self, ordinal: int, stream: int, marks: Marks) -> bool:
        self.ordinal = max(self.ordinal, 0)
        return True

    def launcher(self, channel: Channel, which: int, more: int) -> Launcher:
        run = self._marker(channel, which, more)

        def launch(stream: int) -> int:
            if self.refuses:
                return self.refuses
            if self.holding is not None:
                self.holding.append(run)
            else:
                self.streams.setdefault(stream, deque()).append(run)
            return 0

        return launch

    def attacher(self, channel: Channel, which: int, more: int) -> Attacher:
        launch = self.launcher(channel, which, more)

        def attach(stream: int, tail: Tail | None) -> Tail | None:
            if self.attaches_nothing or launch(stream):
                return None
            self.tails.append(tail)
            return 1, len(self.tails)

        return attach

    def _marker(self, channel: Channel, which: int, more: int) -> Callable[[], None]:
        place = self.slots.offset(channel.index) + which * 16

        def run() -> None:
            self.counts[place] = self.counts.get(place, 0) + more
            stored = struct.pack("<QQ", self.counts[place], now_ns())
            ctypes.memmove(self.slots.address + place, stored, 16)

        return run

    def run(self, count: int | None = None, stream: int = STREAM) -> None:
        """Run the next markers of a stream; all of them when no number is given."""
        waiting = self.streams.get(stream, deque())
        for _ in range(len(waiting) if count is None else count):
            waiting.popleft()()

    def slot(self, comm: Comm) -> dict[str, int]:
        """Return what the file contains."""
        start = comm.channel.index - 1
        data = ctypes.string_at(self.slots.address + start * layout.SLOT.size, layout.SLOT.size)
        finished, _, entered, _, launched, state, reason, since, _, _ = layout.SLOT.unpack(data)
        return {
            "finished": finished,
            "entered": entered,
            "launched": launched,
            "state": state,
            "reason": reason,
            "since": since,
        }


def post(
    tracer: Tracer,
    comm: Comm,
    op: str = "all_reduce",
    *,
    stream: int = STREAM,
    capture: GraphCapture | None = None,
    **parameters: Any,
) -> None:
    """Post a collective as a probe does: record, marker before, the call, marker behind."""
    assert tracer.device is not None
    marks = tracer.device.of(comm.channel, is_nccl="nccl" in comm.backend)
    call = {"shape": (4,), "dtype": "float32", "redop": "sum", **parameters}
    if op == "all_gather":
        call.pop("redop")
    tracer.record(comm, op, captured=capture is not None, **call)
    if marks.begin(stream, capture, 0):
        marks.end(stream, capture, 0, grouped=False)


def captured(tracer: Tracer, comm: Comm, ops: list[str]) -> tuple[TracedGraph, list[Any]]:
    """Capture a graph of collectives, with their markers."""
    device = tracer.device
    assert isinstance(device, HostDevice)
    capture = tracer.graphs.begin()
    device.holding = []
    for op in ops:
        post(tracer, comm, op, stream=99, capture=capture, site=f"layer.py:{len(capture.calls)} f")
    markers, device.holding = device.holding, None
    return tracer.graphs.end(capture), markers


def replay(tracer: Tracer, graph: TracedGraph, markers: list[Any], stream: int = STREAM) -> None:
    """Replay a graph as the probe does."""
    device = tracer.device
    assert isinstance(device, HostDevice)
    graph.replay()
    for marks, count in graph.marks:
        marks.begin_replay(stream, count)
    device.streams.setdefault(stream, deque()).extend(markers)
    for marks, count in graph.marks:
        marks.end_replay(count)
