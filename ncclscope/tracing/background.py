"""Threads of ours in a traced program."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
_END_SECONDS = 1.0
"""Seconds that a thread may take to end at the exit of the interpreter."""

_started: list[BackgroundThread] = []


class BackgroundThread:
    """A thread that takes none of the program's signals, and ends before the interpreter does.

    A signal that the program's own threads block, to wait for it, would end the process by way of a
    thread that does not. And a daemon thread that wakes while the interpreter shuts down ends by
    ``pthread_exit``, for which glibc loads libgcc_s: after ``chroot`` or without a free file
    descriptor it aborts the process instead.

    Args:
        name: Name of the thread.
        target: Called in the thread, with an event that is set when it is to return.
        *arguments: Further arguments.
    """

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        self._event = threading.Event()
        self._thread = threading.Thread(
            target=target, args=(self._event, *arguments), name=name, daemon=True
        )

    def start(self) -> None:
        """Start the thread, unless the process is at its limit or shutting down."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            with contextlib.suppress(RuntimeError):
                self._thread.start()
                _started[:] = (one for one in (*_started, self) if one.is_alive)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._event.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join(_END_SECONDS)


def _end_all() -> None:
    for one in _started:
        one.stop()
    for one in _started:
        one.join()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_started.clear)
