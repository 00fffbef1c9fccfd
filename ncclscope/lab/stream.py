"""Streams that run work asynchronously and in order, as CUDA streams do.

A host runs ahead of the device, and its calls run strictly one after the other, over all
communicators. Both matter: the records hold calls after a mismatch that never run, and a waiting
collective blocks those of all other communicators. gloo has neither, since each of its groups has
its own threads. So one thread here runs all its collectives.
"""

from __future__ import annotations

import abc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ncclscope.tracing import scope

if TYPE_CHECKING:
    from ncclscope.lab.progress import ProgressEntry
    from ncclscope.tracing.tracer import Tracer

_POLL_SECONDS = 0.0005


class Stream(abc.ABC):
    """Runs posted work in order, and updates the state of its records.

    Args:
        tracer: Holds the records.
        progress: Counts completed collectives.
    """

    def __init__(self, tracer: Tracer, progress: ProgressEntry) -> None:
        self.tracer = tracer
        self.progress = progress

    @abc.abstractmethod
    def launch(
        self, work: Callable[..., Any], *arguments: Any, position: int | None = None
    ) -> None:
        """Post work.

        Args:
            work: Function to call.
            arguments: Arguments of ``work``.
            position: Position of its record, for a collective.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all posted work is done.

        Raises:
            RuntimeError: The backend raised it; no further work has run since.
        """

    def _completed(self, position: int) -> None:
        self.tracer.complete(position)
        self.progress.complete()


class HostStream(Stream):
    """Stream on a host thread."""

    def __init__(self, tracer: Tracer, progress: ProgressEntry) -> None:
        super().__init__(tracer, progress)
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="stream", daemon=True).start()

    def launch(
        self, work: Callable[..., Any], *arguments: Any, position: int | None = None
    ) -> None:
        self._posted.put(lambda: self._perform(work, arguments, position))

    def synchronize(self) -> None:
        reached = threading.Event()
        self._posted.put(reached.set)
        reached.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        # The calls are recorded when they are posted; an active probe must not record them again.
        with scope.suppressed():
            while True:
                self._posted.get()()

    def _perform(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], position: int | None
    ) -> None:
        if self._error is not None:
            return
        if position is not None:
            self.tracer.start(position)
        try:
            work(*arguments)
        except Exception as error:
            self._error = error
            return
        if position is not None:
            self._completed(position)


class CudaStream(Stream):
    """Current stream of the device, with an event after each collective."""

    def __init__(self, tracer: Tracer, progress: ProgressEntry) -> None:
        super().__init__(tracer, progress)
        self._pending: deque[tuple[torch.cuda.Event, int]] = deque()

    def launch(
        self, work: Callable[..., Any], *arguments: Any, position: int | None = None
    ) -> None:
        with scope.suppressed():
            work(*arguments)
        if position is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._pending.append((event, position))
        self._collect()

    def synchronize(self) -> None:
        while self._collect():
            time.sleep(_POLL_SECONDS)

    def _collect(self) -> bool:
        """Mark completed collectives; return whether any are pending."""
        while self._pending and self._pending[0][0].query():  # type: ignore[no-untyped-call]
            self._completed(self._pending.popleft()[1])
        return bool(self._pending)
