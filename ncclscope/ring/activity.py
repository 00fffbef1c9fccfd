"""What a process does besides its calls: the newest of each kind, in the header of its ring.

A verdict needs to know that a worker waits for work, not how often it has. An activity is
therefore kept in a place of its own, where the next one overwrites it, and survives SIGKILL as
the calls do.
"""

from __future__ import annotations

import itertools
import mmap
import time
from typing import NamedTuple

from ncclscope.ring import layout
from ncclscope.ring.intern import Interner

__all__ = ["Activities", "Begun", "Slot"]

_pack = layout.ACTIVITY.pack_into
_time_ns = time.time_ns


class Begun(NamedTuple):
    """One time that an activity was begun; for :meth:`Slot.end`."""

    turn: int
    since: int
    number: int
    detail: int


class Slot:
    """Where one kind of activity of a process is noted; made by :meth:`Activities.named`.

    Neither method takes a lock, and each stores in one call, as the calls are stored. Of
    several threads that do the same, the one that began last is told of.
    """

    __slots__ = ("_buffer", "_interner", "_name", "_newest", "_offset", "_turns")

    def __init__(
        self, buffer: mmap.mmap | bytearray, offset: int, name: int, interner: Interner
    ) -> None:
        self._buffer = buffer
        self._offset = offset
        self._name = name
        self._interner = interner
        self._turns = itertools.count(1)
        self._newest = 0

    def begin(self, detail: str | None = None, number: int = 0) -> Begun:
        """Notes that it begins.

        Args:
            detail: A word more, one of few, such as the name of a method.
            number: Whatever it has a number of, such as the step.
        """
        begun = Begun(
            next(self._turns),
            _time_ns(),
            min(max(number, 0), layout.MOST),
            self._interner.text(layout.KIND_ACTIVITY, detail),
        )
        self._newest = begun.turn
        self._store(begun, 0)
        return begun

    def end(self, begun: Begun) -> None:
        """Notes that it has ended, unless it has begun again since."""
        if begun.turn == self._newest:
            self._store(begun, _time_ns())

    def _store(self, begun: Begun, until: int) -> None:
        turn, since, number, detail = begun
        _pack(self._buffer, self._offset, turn, since, until, number, self._name, detail, turn)


class Activities:
    """The activities of one ring.

    Args:
        buffer: The map of the file.
        interner: That of the ring.
    """

    def __init__(self, buffer: mmap.mmap | bytearray, interner: Interner) -> None:
        self._buffer = buffer
        self._interner = interner
        self._named: dict[str, Slot] = {}

    def named(self, name: str) -> Slot:
        """Returns the activity of this name; one for which there is no room is not seen."""
        found = self._named.get(name)
        if found is not None:
            return found
        place = len(self._named)
        number = self._interner.text(layout.KIND_ACTIVITY, name)
        if place < layout.MAX_ACTIVITIES and number:
            offset = layout.HEADER_ACTIVITIES + place * layout.ACTIVITY.size
            made = Slot(self._buffer, offset, number, self._interner)
        else:
            made = Slot(bytearray(layout.ACTIVITY.size), 0, 0, self._interner)
        return self._named.setdefault(name, made)

    def detach(self) -> None:
        """Lets go of the file."""
        self._buffer = bytearray(layout.PAGE)
        for activity in self._named.values():
            activity._buffer = self._buffer
