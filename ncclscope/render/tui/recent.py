"""Calls for the lower pane, read from rings on demand."""

from __future__ import annotations

from ncclscope.errors import NcclscopeError
from ncclscope.model import Call
from ncclscope.readers.ring.cursor import RingCursor

_AGAIN = 1.0
"""Seconds between two readings of a rank that moves."""


class RecentCalls:
    """Cache of the last calls of one process."""

    def __init__(self) -> None:
        self._about: object = None
        self._state: object = None
        self._read_at = 0.0
        self._calls: list[Call] = []

    def of(self, cursor: RingCursor, count: int, key: str | None, now: float) -> list[Call]:
        """Return the last calls, oldest first; none if the ring cannot be read.

        Args:
            cursor: Cursor of the process.
            count: Most calls to return.
            key: Key of a communicator; None for all.
            now: Current time in seconds, of a monotonic clock.
        """
        about = cursor.path, count, key
        if about == self._about and (
            cursor.signature == self._state or now - self._read_at < _AGAIN
        ):
            return self._calls
        self._about, self._state, self._read_at = about, cursor.signature, now
        try:
            self._calls = cursor.newest(count, key)
        except (NcclscopeError, OSError):
            self._calls = []
        return self._calls
