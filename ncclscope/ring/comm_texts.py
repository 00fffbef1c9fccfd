"""Write the texts of communicators: each has a number, which its successor may take over."""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass, field

from ncclscope.ring import layout
from ncclscope.ring.intern import Interner

_SINCE = 32
"""Bytes that ``since`` may take in the text of a communicator that reuses a number."""


@dataclass
class _Text:
    """An entry of the strings part that may be overwritten.

    Attributes:
        number: Its number within its kind.
        offset: Offset of the entry in the file.
        size: Bytes of the text, with the blanks behind it.
    """

    number: int
    offset: int
    size: int


@dataclass
class _Described:
    """The texts of one communicator.

    Attributes:
        text: Its description.
        updates: Its updates, and entries of predecessors for further ones.
        used: Number of entries that are passed: readers apply updates in the order of the file.
        closed: Whether it was destroyed.
    """

    text: _Text
    updates: list[_Text] = field(default_factory=list)
    used: int = 0
    newest: bytes = b""
    closed: bool = False


class CommTexts:
    """The texts of one ring's communicators. Its caller serialises.

    Args:
        buffer: The mapped file.
        geometry: Offsets and sizes of its sections.
        interner: Writes new texts.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry, interner: Interner) -> None:
        self._buffer = buffer
        self._geometry = geometry
        self._interner = interner
        self._described: dict[int, _Described] = {}
        self._closed: deque[int] = deque()
        self._updates = 0
        self._reused = 0

    def open(self, text: str, position: int) -> int:
        """Write a communicator's description.

        Args:
            text: A JSON object.
            position: Number of records made.

        Returns:
            Its number; 0 without room.
        """
        count = len(self._described)
        if count >= layout.REUSED_FROM and (number := self.again(text, position)):
            return number
        if count >= self._geometry.comms:
            return 0
        data = text.encode()
        made = self._append(layout.KIND_COMM, count + 1, data, len(data) + _SINCE)
        if made is None:
            return self.again(text, position)
        self._described[count + 1] = _Described(made)
        return count + 1

    def again(self, text: str, position: int) -> int:
        """Overwrite the description of the communicator that was destroyed first and is as long.

        Args:
            text: A JSON object.
            position: Number of records made.

        Returns:
            The number that it takes over; 0 if there is none.
        """
        size = _padded(len(text.encode()) + _SINCE)
        for number in self._closed:
            described = self._described[number]
            if size <= described.text.size:
                break
        else:
            return 0
        self._closed.remove(number)
        for update in described.updates:
            self._overwrite(layout.KIND_COMM_UPDATE, update, b"{}")
        data = f'{text[:-1]}, "since": {position}}}'.encode()
        self._reused += 1
        layout.put_word(self._buffer, layout.HEADER_REUSED, self._reused)
        self._overwrite(layout.KIND_COMM, described.text, data)
        self._described[number] = _Described(described.text, described.updates)
        return number

    def update(self, number: int, text: str) -> None:
        """Write an update of a communicator's description, a JSON object."""
        described, data = self._described.get(number), text.encode()
        if described is None or data == described.newest:
            return
        size, place, updates = _padded(len(data)), described.used, described.updates
        while place < len(updates) and updates[place].size < size:
            place += 1
        if place < len(updates):
            self._overwrite(layout.KIND_COMM_UPDATE, updates[place], data)
        else:
            made = self._append(layout.KIND_COMM_UPDATE, self._updates + 1, data, len(data))
            if made is None:
                return
            self._updates += 1
            updates.append(made)
        described.used, described.newest = place + 1, data

    def close(self, number: int) -> None:
        """Let a number be taken over."""
        described = self._described.get(number)
        if described is not None and not described.closed:
            described.closed = True
            self._closed.append(number)

    def reopen(self, number: int) -> None:
        """Take back :meth:`close`."""
        described = self._described.get(number)
        if described is not None and described.closed:
            described.closed = False
            self._closed.remove(number)

    def _append(self, kind: int, number: int, data: bytes, size: int) -> _Text | None:
        size = _padded(size)
        offset = self._interner.append(self._buffer, kind, number, data.ljust(size))
        return None if offset is None else _Text(number, offset, size)

    def _overwrite(self, kind: int, text: _Text, data: bytes) -> None:
        self._interner.put(self._buffer, text.offset, kind, text.number, data.ljust(text.size))


def _padded(size: int) -> int:
    return -(-size // layout.COMM_ROOM) * layout.COMM_ROOM
