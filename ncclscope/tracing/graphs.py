"""Record the CUDA graphs of a process: the calls captured into each, and its replays.

A captured call does not run. It becomes part of the graph's list of calls and not of the
communicator's sequence. Each replay then adds the whole list to the sequence. ::

    capture = tracer.graphs.begin()
    tracer.record(comm, "all_reduce", shape=(15, 2), dtype="float32", captured=True)
    graph = tracer.graphs.end(capture)
    graph.replay()
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ncclscope.ring import layout
from ncclscope.ring.graph_book import GraphCall

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.host import Host


class GraphCapture:
    """A graph that is being captured; created by :meth:`Graphs.begin`.

    Attributes:
        calls: The calls captured so far.
        marked: Number of calls followed by a GPU marker, by communicator.
        in_stream: Whether the markers are in the stream; None before the first.
    """

    __slots__ = ("calls", "in_stream", "marked", "thread")

    def __init__(self) -> None:
        self.calls: list[GraphCall] = []
        self.marked: dict[Channel, int] = {}
        self.in_stream: bool | None = None
        self.thread = threading.get_ident()


class TracedGraph:
    """A captured graph; created by :meth:`Graphs.end`.

    Attributes:
        number: Its number among this process's graphs with calls, from 1; 0 without calls.
        replays: Number of replays so far.
        marks: Markers of each communicator, with their number of calls in the graph.

    Args:
        tracer: The tracer of this process.
        number: Number of the graph.
        calls: Its calls, in their order.
        kept: Whether the ring's graphs section holds the graph.
    """

    __slots__ = ("_parts", "_singles", "_tracer", "marks", "number", "replays")

    def __init__(self, tracer: Host, number: int, calls: Sequence[GraphCall], kept: bool) -> None:
        self._tracer = tracer
        self.number = number
        self.replays = 0
        self.marks: Sequence[tuple[Any, int]] = ()
        self._parts = tracer.ring.parts_of(calls, number) if kept else []
        # Sends and receives, or all calls if the graphs section had no room for the graph.
        self._singles = [call for call in calls if not (kept and call.signature)]

    def replay(self) -> int:
        """Record that all calls of the graph are about to be enqueued again.

        Returns:
            The position of the first record, for :meth:`Tracer.complete`; -1 if there is none.
        """
        self.replays = number = self.replays + 1
        tracer = self._tracer
        position = -1
        if self._parts:
            position = tracer.ring.post_replay(self._parts, number)
            if tracer.watched is not None:
                for part in self._parts:
                    tracer.watched(part.channel)
        if self._singles:
            for call in self._singles:
                at = self._single(call)
                position = at if position < 0 else position
        return position

    def _single(self, call: GraphCall) -> int:
        ring, graph, flag = self._tracer.ring, self.number, layout.FLAG_REPLAYED
        if not call.signature:
            return ring.post_p2p(call.channel, call.fixed, 0, flag, call.group, graph)
        post = self._tracer.post
        return post(call.channel, call.fixed, call.signature, 0, flag, call.group, graph)


class Graphs:
    """The graphs of one tracer.

    Args:
        tracer: The tracer that records calls and replays.
    """

    def __init__(self, tracer: Host) -> None:
        self._tracer = tracer
        self._open: list[GraphCapture] = []
        self._count = 0
        self._lock = threading.RLock()

    def begin(self) -> GraphCapture:
        """Begin the capture of a graph.

        Calls recorded as captured from here on belong to it. If several graphs are captured at
        once, a call belongs to the one of its thread, or else to the newest.
        """
        capture = GraphCapture()
        with self._lock:
            self._open.append(capture)
            self._tracer.ring.capture = self._take
        return capture

    def leave(self, capture: GraphCapture) -> bool:
        """Stop capturing into a graph; return False if it was already stopped."""
        with self._lock:
            if capture not in self._open:
                return False
            self._open.remove(capture)
        return True

    def end(self, capture: GraphCapture) -> TracedGraph:
        """Write the calls of a graph to the ring, and return the graph."""
        self.leave(capture)
        if not capture.calls:
            return TracedGraph(self._tracer, 0, (), False)
        with self._lock:
            self._count += 1
            number = self._count
        kept = self._tracer.ring.graphs.add(number, capture.calls)
        graph = TracedGraph(self._tracer, number, capture.calls, kept)
        if self._tracer.device is not None:
            graph.marks = self._tracer.device.captured(capture)
        return graph

    def current(self) -> GraphCapture | None:
        """Return the capture that a call of this thread belongs to; None if there is none."""
        captures = self._open[:]
        here = threading.get_ident()
        mine = [capture for capture in captures if capture.thread == here] or captures
        return mine[-1] if mine else None

    def detach(self) -> None:
        """Drop open captures, in the child after a fork."""
        self._lock = threading.RLock()
        self._open.clear()

    def _take(self, channel: Channel, fixed: bytes, signature: int, group: int) -> bool:
        """Add a captured call to its graph; return False if no capture is open."""
        capture = self.current()
        if capture is None:
            return False
        sizes = self._tracer.ring.sizes_of(fixed)
        capture.calls.append(GraphCall(channel, fixed, signature, group, sizes))
        return True
