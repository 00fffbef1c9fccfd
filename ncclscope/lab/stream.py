"""Work in order beside the host, as on a CUDA stream.

A host posts far more than has been done, and what it has posted runs strictly one after the
other, over all communicators. Both matter: the calls that follow a mismatch stand in the
records although they never run, and a collective that waits keeps those of all other
communicators waiting. gloo by itself has neither, since each of its groups has its own
threads; so its collectives run on one thread here.
"""

from __future__ import annotations

import abc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclscope.tracing import scope

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.progress import ProgressEntry
    from ncclscope.tracing.tracer import Tracer

__all__ = ["CudaStream", "HostStream", "Stream"]

_POLL_SECONDS = 0.0005


class Stream(abc.ABC):
    """Runs what is posted, in order, and keeps the records' states.

    Args:
        tracer: Has the records.
        progress: Counts what has completed.
    """

    def __init__(self, tracer: Tracer, progress: ProgressEntry) -> None:
        self.tracer = tracer
        self.progress = progress

    @abc.abstractmethod
    def launch(
        self, work: Callable[..., Any], *arguments: Any, position: int | None = None
    ) -> None:
        """Posts work.

        Args:
            work: Called with the arguments when its turn comes.
            arguments: For ``work``.
            position: The record, when the work is a collective.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Waits until all posted work is done.

        Raises:
            RuntimeError: What the backend raised; nothing has run since.
        """

    def _completed(self, position: int) -> None:
        self.tracer.complete(position)
        self.progress.complete()


class HostStream(Stream):
    """A thread that runs the work."""

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
        # Everything here is recorded where it was posted; a probe that is active as well
        # must not record it a second time.
        with scope.folded():
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
    """The device's current stream, with an event after each collective."""

    def __init__(self, tracer: Tracer, progress: ProgressEntry) -> None:
        super().__init__(tracer, progress)
        self._pending: deque[tuple[torch.cuda.Event, int]] = deque()

    def launch(
        self, work: Callable[..., Any], *arguments: Any, position: int | None = None
    ) -> None:
        import torch

        with scope.folded():
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
        """Notes what has completed; returns whether anything is left."""
        while self._pending and self._pending[0][0].query():  # type: ignore[no-untyped-call]
            self._completed(self._pending.popleft()[1])
        return bool(self._pending)
