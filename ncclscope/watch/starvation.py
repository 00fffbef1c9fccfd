"""Tell ranks that had no processor from ranks that hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclscope.engine.processes.motion import STARVED
from ncclscope.procfs import processor_wait
from ncclscope.readers.ring.cursor import RingCursor

_QUIET = 1.0
"""Seconds without progress after which the wait for a processor is measured."""
_MEASURED = 2.0
"""Seconds in which a thread's share of waiting means something."""
_AGAIN = 1.0


class Starvation:
    """Ranks of this host whose main thread had no processor while they made no progress.

    A rank that waits for a processor is late, and so are the ranks that wait for it. Neither
    is a hang. As ranks that spin in a real hang may starve each other, that holds for a while.

    Args:
        longest: Seconds without progress after which a rank counts as hanging all the same.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._began: dict[Path, tuple[float, float, float]] = {}
        """Since when a rank made no progress, when that was noticed, and its wait by then."""
        self._measured_at = float("-inf")
        self._held: frozenset[Path] = frozenset()

    def held(self, living: Sequence[RingCursor], now: float) -> frozenset[Path]:
        """Return the rings of starved ranks, and of those that share a communicator with one.

        Args:
            living: Cursors of running jobs.
            now: Seconds by the watcher's clock.
        """
        if now - self._measured_at >= _AGAIN:
            self._measured_at = now
            starved = list(self._starved(living, now))
            keys = {key for cursor in starved for key in cursor.comm_cursors}
            late = (c for c in living if keys & c.comm_cursors.keys()) if keys else ()
            self._held = frozenset(
                cursor.path for cursor in late if now - cursor.moved_at < self._longest
            )
        return self._held

    def _starved(self, living: Iterable[RingCursor], now: float) -> Iterable[RingCursor]:
        quiet: dict[Path, tuple[float, float, float]] = {}
        for cursor in living:
            if not (cursor.is_local and cursor.alive) or cursor.over:
                continue
            if now - cursor.moved_at < _QUIET:
                continue
            wait = processor_wait(cursor.pid)
            if wait is None:
                continue
            began = self._began.get(cursor.path)
            if began is None or began[0] != cursor.moved_at:
                began = cursor.moved_at, now, wait
            quiet[cursor.path] = began
            _, since, before = began
            if now - since >= _MEASURED and wait - before >= STARVED * (now - since):
                yield cursor
        self._began = quiet
