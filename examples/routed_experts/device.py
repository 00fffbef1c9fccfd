"""Stand-in for a GPU: a queue of work that runs in order beside the host.

The host posts a step and goes on to the next. To wait for the device is to wait for real work,
so it costs what it costs: the host has nothing posted when the device is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Device"]


class Device:
    """A thread that does what is posted.

    Args:
        failed: Called, once, when work has raised. Nothing is done after that.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._broken = False
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def launch(self, work: Callable[..., object], *arguments: Any) -> None:
        """Post work; does not wait."""
        self._posted.put(lambda: self._perform(work, arguments))

    def synchronize(self) -> None:
        """Wait until all posted work is done, or will never be."""
        reached = threading.Event()
        self._posted.put(reached.set)
        reached.wait()

    def _run(self) -> None:
        while True:
            self._posted.get()()

    def _perform(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self._broken:
            return
        try:
            work(*arguments)
        except Exception as error:
            self._broken = True
            self._failed(error)
