"""Record calls captured into CUDA graphs, and each replay.

All torch graphs are captured and replayed through ``torch.cuda.CUDAGraph``: by
``torch.cuda.graph``, by ``make_graphed_callables``, by the graph trees of torch.compile, and by
vLLM's full and piecewise wrappers. A replay runs no host code, so this is the only place where its
collectives can be recorded.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from ncclscope.tracing import session
from ncclscope.tracing.graphs import GraphCapture, TracedGraph
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes import device_streams
from ncclscope_patches.probes.probe import Patch

_Captured = tuple[Any, Tracer, GraphCapture]


class CudaGraphProbe(Patch):
    """Records the captures of graphs, and their replays.

    Graphs are forgotten when they are freed or their capture fails. Graphs without collectives are
    not recorded, and their replays cost one dictionary look-up.
    """

    name = "cuda_graphs"
    target = "torch.cuda.graphs"
    supports = "torch 2.4 to 2.15"

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, tuple[Tracer, GraphCapture]] = {}
        self._graphs: dict[int, TracedGraph] = {}
        """Graphs by the id of torch's object."""
        self._alive: dict[int, weakref.ref[Any]] = {}
        session.on_reset(self._forget_all)

    def install(self, module: Any) -> None:
        cls = module.CUDAGraph
        self.replace(cls, "capture_begin", after=self._begin)
        self.replace(cls, "capture_end", self._leave, self._end)
        replay = getattr(cls, "replay", None)
        if callable(replay) and not self.has_replaced(replay):
            self.put(cls, "replay", functools.update_wrapper(self._replaying(replay), replay))
        self.replace(cls, "reset", self._forget)

    def _begin(self, token: Any, _result: Any) -> None:
        graph = token[0][0]
        self._forget(token[0], {})
        tracer = session.opened()  # a process without communicators needs no ring
        if tracer is not None:
            self._open[id(graph)] = tracer, tracer.graphs.begin()

    def _leave(self, args: tuple[Any, ...], _kwargs: Any) -> _Captured | None:
        """End the capture, even if torch then reports that it failed."""
        found = self._open.pop(id(args[0]), None)
        if found is None:
            return None
        tracer, capture = found
        tracer.graphs.leave(capture)
        return args[0], tracer, capture

    def _end(self, token: _Captured, _result: Any) -> None:
        graph, tracer, capture = token
        recorded = tracer.graphs.end(capture)
        if not recorded.number:
            return
        number, graphs, alive = id(graph), self._graphs, self._alive

        # Ids are reused, so an entry must not outlive its graph.
        def forget(_reference: weakref.ref[Any]) -> None:
            graphs.pop(number, None)
            alive.pop(number, None)

        alive[number] = weakref.ref(graph, forget)
        graphs[number] = recorded

    def _replaying(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with a record before it.

        It does not use guard(), for speed: a step of an engine replays a piece per layer. See
        :mod:`ncclscope_patches.probes.noting`.
        """
        graphs = self._graphs
        start, finish = device_streams.start_replay, device_streams.finish_replay

        def replayed(*args: Any, **kwargs: Any) -> Any:
            marks: Any = ()
            if self.active:
                try:
                    recorded = graphs.get(id(args[0]))
                    if recorded is not None:
                        recorded.replay()
                        marks = recorded.marks
                        if marks:
                            start(marks)
                except Exception as error:
                    self.fail(error)
            result = replay(*args, **kwargs)
            if marks:
                try:
                    finish(marks)
                except Exception as error:
                    self.fail(error)
            return result

        return replayed

    def _forget(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        number = id(args[0])
        self._graphs.pop(number, None)
        self._alive.pop(number, None)
        found = self._open.pop(number, None)
        if found is not None:
            found[0].graphs.leave(found[1])

    def _forget_all(self) -> None:
        self._open.clear()
        self._graphs.clear()
        self._alive.clear()
