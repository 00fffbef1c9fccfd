"""CUDA graphs of one process: what was posted while each was captured, and each replay.

What is posted while a graph is captured is not carried out. It becomes the graph's list of
calls and takes no part in the sequence of its communicator; each replay then enters it as a
whole. ::

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
from ncclscope.ring.replays import parts_of

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.host import Host

__all__ = ["GraphCapture", "Graphs", "TracedGraph"]


class GraphCapture:
    """A graph that is being captured; made by :meth:`Graphs.begin`.

    Attributes:
        calls: What was posted since.
        marked: Calls behind which there is a marker for the GPU, by communicator.
        in_stream: Whether these markers stand in the stream; None before the first.
    """

    __slots__ = ("calls", "in_stream", "marked", "thread")

    def __init__(self) -> None:
        self.calls: list[GraphCall] = []
        self.marked: dict[Channel, int] = {}
        self.in_stream: bool | None = None
        self.thread = threading.get_ident()


class TracedGraph:
    """A graph that has been captured; made by :meth:`Graphs.end`.

    Attributes:
        number: Its number in this process, from 1, among the graphs that hold calls; 0 for one
            that holds none.
        replays: How often it has been replayed.
        marks: By communicator, the markers among its calls, and how many calls those are.
    """

    __slots__ = ("_parts", "_singles", "_tracer", "marks", "number", "replays")

    def __init__(self, tracer: Host, number: int, calls: Sequence[GraphCall], kept: bool) -> None:
        self._tracer = tracer
        self.number = number
        self.replays = 0
        self.marks: Sequence[tuple[Any, int]] = ()
        self._parts = parts_of(calls, number) if kept else []
        # What is not part of a common sequence, or what there was no room for.
        self._singles = [call for call in calls if not (kept and call.signature)]

    def replay(self) -> int:
        """Record that all calls of the graph are about to be posted once more.

        Returns:
            The position of the first record, for :meth:`Tracer.complete`; -1 where there is none.
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
        tracer: Where calls and replays are recorded.
    """

    def __init__(self, tracer: Host) -> None:
        self._tracer = tracer
        self._open: list[GraphCapture] = []
        self._count = 0
        self._lock = threading.RLock()

    def begin(self) -> GraphCapture:
        """Note that a graph is being captured.

        What is recorded as captured from here on belongs to it; where several are captured at
        once, to that of the thread which posts it, or else to the newest.
        """
        capture = GraphCapture()
        with self._lock:
            self._open.append(capture)
            self._tracer.ring.capture = self._take
        return capture

    def leave(self, capture: GraphCapture) -> bool:
        """Note that nothing more is captured into a graph; False where that is known."""
        with self._lock:
            if capture not in self._open:
                return False
            self._open.remove(capture)
        return True

    def end(self, capture: GraphCapture) -> TracedGraph:
        """Write down what a graph holds, and return it."""
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
        """Return what a call belongs to that this thread captures now."""
        captures = self._open[:]
        here = threading.get_ident()
        mine = [capture for capture in captures if capture.thread == here] or captures
        return mine[-1] if mine else None

    def detach(self) -> None:
        """Drop what was being captured; for the child after a fork."""
        self._lock = threading.RLock()
        self._open.clear()

    def _take(self, channel: Channel, fixed: bytes, signature: int, group: int) -> bool:
        """Take a captured call where a graph is open for it."""
        capture = self.current()
        if capture is None:
            return False
        sizes = self._tracer.ring.sizes_of(fixed)
        capture.calls.append(GraphCall(channel, fixed, signature, group, sizes))
        return True
