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
_MOST_WORDS = 256


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

    Attributes:
        buffer: The map of the file.
        offset: Where in it.
        name: Number of the activity's name.
        words: Numbers of the details that there have been.
        turns: Counts how often it has begun.
        newest: The last of these.
    """

    # All of them for ncclscope_patches.probes.noting, which does what begin() and end() do.
    __slots__ = ("_interner", "buffer", "name", "newest", "offset", "turns", "words")

    def __init__(
        self, buffer: mmap.mmap | bytearray, offset: int, name: int, interner: Interner
    ) -> None:
        self.buffer = buffer
        self.offset = offset
        self.name = name
        self.words: dict[str | None, int] = {}
        self.turns = itertools.count(1)
        self.newest = 0
        self._interner = interner

    def word(self, detail: str | None) -> int:
        """Return the number of a detail, which :attr:`words` has from then on."""
        number = self._interner.text(layout.KIND_ACTIVITY, detail)
        if len(self.words) < _MOST_WORDS:
            self.words[detail] = number
        return number

    def begin(self, detail: str | None = None, number: int = 0) -> Begun:
        """Note that it begins.

        Args:
            detail: A word more, one of few, such as the name of a method.
            number: Whatever it has a number of, such as the step.
        """
        begun = Begun(
            next(self.turns),
            _time_ns(),
            min(max(number, 0), layout.MOST),
            self.words.get(detail) or self.word(detail),
        )
        self.newest = begun.turn
        self._store(begun, 0)
        return begun

    def end(self, begun: Begun) -> None:
        """Note that it has ended, unless it has begun again since."""
        if begun.turn == self.newest:
            self._store(begun, _time_ns())

    def _store(self, begun: Begun, until: int) -> None:
        turn, since, number, detail = begun
        _pack(self.buffer, self.offset, turn, since, until, number, self.name, detail, turn)


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
        """Return the activity of this name; one for which there is no room is not seen."""
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
        """Let go of the file."""
        self._buffer = bytearray(layout.PAGE)
        for activity in self._named.values():
            activity.buffer = self._buffer
