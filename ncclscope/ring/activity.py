"""Record a process's activities besides its calls: the newest of each kind, in the ring's header.

A verdict needs to know that a worker waits for work, not how often it did. So each activity has
a fixed slot, which the next one of its kind overwrites. It survives SIGKILL like the calls.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.ring import layout
from ncclscope.ring.intern import Interner

_pack = layout.ACTIVITY.pack_into
_LOW, _MASK = 0xFFFFFFFF, (1 << 64) - 1
_F0, _F1, _F2, _F3, _F4, _F5 = layout.FACTORS[:6]
_MOST_WORDS = 256
_SCRATCH = layout.MIRROR + layout.PAGE


Begun = tuple[int, int, int, int]
"""One begin of an activity, for :meth:`Slot.end`: how often it has begun, since when (nanoseconds
since 1970), its number and the number of its detail."""


class Slot:
    """The slot of one kind of activity; created by :meth:`Activities.named`.

    No method takes a lock; each stores in one call, as calls are stored. If several threads
    do the same activity, the slot shows the one that began last.

    Attributes:
        buffer: The mapped file.
        offset: Offset of the slot in it, in bytes.
        name: Number of the activity's name.
        words: Numbers of known details, by text.
        turns: Counter of begins.
        newest: Number of the last begin.

    Args:
        buffer: The mapped file.
        offset: Offset of the slot in it, in bytes.
        name: Number of the activity's name.
        interner: Stores the texts of details.
    """

    # Public for ncclscope_patches.probes.noting, which inlines begin() and end().
    __slots__ = ("_interner", "buffer", "name", "newest", "offset", "turns", "words")
    core: Any = None
    """What stores in C; None if this class does."""

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
        """Return the number of a detail, and add it to :attr:`words`."""
        number = self._interner.text(layout.KIND_ACTIVITY, detail)
        if len(self.words) < _MOST_WORDS:
            self.words[detail] = number
        return number

    def begin(self, detail: str | None = None, number: int = 0, since: int = 0) -> Begun:
        """Record that the activity begins.

        Args:
            detail: One of a few texts, such as the name of a method.
            number: A number that identifies it, such as the step.
            since: When it began, nanoseconds since 1970; now by default.
        """
        begun = (
            next(self.turns),
            since or now_ns(),
            min(max(number, 0), layout.MOST),
            self.words.get(detail) or self.word(detail),
        )
        self.newest = begun[0]
        self._store(begun, 0)
        return begun

    def end(self, begun: Begun) -> None:
        """Record that the activity has ended, unless it has begun again since."""
        if begun[0] == self.newest:
            self._store(begun, now_ns())

    def _store(self, begun: Begun, until: int) -> None:
        turn, since, number, detail = begun
        self.store(turn, since, until, number, detail)

    def store(self, turn: int, since: int, until: int, number: int, detail: int) -> None:
        """Store the fields of an activity, each copy in one call that no thread can interrupt.

        Args:
            turn: How often it has begun.
            since: When it began, nanoseconds since 1970.
            until: When it ended; 0 while it lasts.
            number: A number that identifies it.
            detail: Number of its detail.
        """
        name, end = self.name, turn & _LOW
        words = turn * _F0 + since * _F1 + until * _F2 + number * _F3
        check = (words + (name | detail << 32) * _F4 + end * _F5 & _MASK) >> 32
        for offset in (layout.MIRROR + self.offset, self.offset):
            _pack(self.buffer, offset, turn, since, until, number, name, detail, end, check)


class NativeSlot(Slot):
    """A slot in which the core in C stores, and counts the begins.

    Args:
        core: The core's slot of the activity.
        interner: Stores the texts of details.
    """

    __slots__ = ("core",)

    def __init__(self, core: Any, interner: Interner) -> None:
        super().__init__(bytearray(), 0, 0, interner)
        self.core = core

    def begin(self, detail: str | None = None, number: int = 0, since: int = 0) -> Begun:
        """Record that the activity begins; see :meth:`Slot.begin`."""
        begun: Begun = self.core.begin(since, number, self.words.get(detail) or self.word(detail))
        return begun

    def end(self, begun: Begun) -> None:
        """Record that the activity has ended, unless it has begun again since."""
        self.core.end(begun)


class Activities:
    """The activities of one ring.

    Args:
        buffer: The mapped file.
        interner: The ring's interner.
        core: Return the core's slot from offset and number of the name; None without the core.
    """

    def __init__(
        self,
        buffer: mmap.mmap | bytearray,
        interner: Interner,
        core: Callable[[int, int], Any] | None = None,
    ) -> None:
        self._buffer = buffer
        self._interner = interner
        self._core = core
        self._named: dict[str, Slot] = {}

    def named(self, name: str) -> Slot:
        """Return the slot of an activity; if the header is full, one that is not in the file."""
        found = self._named.get(name)
        if found is not None:
            return found
        place = len(self._named)
        number = self._interner.text(layout.KIND_ACTIVITY, name)
        if place < layout.MAX_ACTIVITIES and number:
            offset = layout.HEADER_ACTIVITIES + place * layout.ACTIVITY.size
            if self._core is None:
                made = Slot(self._buffer, offset, number, self._interner)
            else:
                made = NativeSlot(self._core(offset, number), self._interner)
        else:
            made = Slot(bytearray(_SCRATCH), 0, 0, self._interner)
        return self._named.setdefault(name, made)

    def detach(self) -> None:
        """Stop writing to the file."""
        self._buffer = bytearray(_SCRATCH)
        for activity in self._named.values():
            activity.buffer = self._buffer
