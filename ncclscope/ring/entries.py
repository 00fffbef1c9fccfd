"""Entries of a kind and some bytes in a section: interned texts, and parts of CUDA graphs."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ncclscope.ring import layout

_KIND_BITS = 24
_SKIPPED = 8
"""Most damaged entries of one kind in a row that are recognised by the number of the next."""
_SEARCHED = 1 << 25
"""Bytes whose checksums are computed in all searches for the next whole entry of a section."""


class Entry(NamedTuple):
    """One entry.

    Attributes:
        kind: Its kind.
        data: Its bytes; empty if they are damaged.
        is_whole: Whether they fit their checksum.
        number: Its number within its kind.
        offset: Where it begins in the section, in bytes; -1 if that is not known.
    """

    kind: int
    data: bytes
    is_whole: bool
    number: int = 0
    offset: int = -1


def size_of(data: bytes) -> int:
    """Return how many bytes an entry of this data takes, with its head and the padding."""
    return -(-(layout.ENTRY.size + len(data)) // 8) * 8


def put(buffer: mmap.mmap, offset: int, kind: int, number: int, data: bytes) -> None:
    """Write an entry.

    Args:
        buffer: The mapped file.
        offset: Where the entry begins, in bytes.
        kind: Of the entry.
        number: Its number within the kind, from 1.
        data: Its bytes.
    """
    checksum = layout.checksum(kind, number, data)
    layout.ENTRY.pack_into(buffer, offset, len(data) | kind << _KIND_BITS, checksum)
    start = offset + layout.ENTRY.size
    buffer[start : start + len(data)] = data


def read(data: bytes, spare: bytes = b"", *, checked: bool = True) -> Iterator[Entry]:
    """Yield the entries of a section; damaged ones, too, so that later ones keep their numbers.

    Args:
        data: The used bytes of the section.
        spare: The same bytes of its copy.
        checked: Whether the ring is of version 3.
    """
    if not checked:
        yield from _read_old(data)
        return
    offset, head, budget = 0, layout.ENTRY.size, _SEARCHED
    numbers: Counter[int] = Counter()
    is_damaged = is_lost = False
    while offset + head <= len(data) and budget > 0:
        number = 0
        for source in (data, spare):
            if number or offset + head > len(source):
                continue
            word, checksum = layout.ENTRY.unpack_from(source, offset)
            kind, length = word >> _KIND_BITS, word & layout.LONGEST_ENTRY
            entry = source[offset + head : offset + head + length]
            if not kind or len(entry) < length:
                continue
            # The number of an entry behind damaged ones says how many of its kind these were.
            first, count = numbers[kind] + 1, 1 + _SKIPPED * is_damaged
            possible = range(first, first + count)
            fitting = (at for at in possible if layout.checksum(kind, at, entry) == checksum)
            number = next(fitting, 0)
            budget -= 0 if number else length * count
        if not number:
            if not is_lost:
                yield Entry(0, b"", False)
            is_damaged = is_lost = True
            offset += 8
            budget -= 8
            continue
        for _ in range(number - first):
            yield Entry(kind, b"", False)
        numbers[kind] = number
        is_lost = False
        yield Entry(kind, entry, True, number, offset)
        offset += size_of(entry)


def _read_old(data: bytes) -> Iterator[Entry]:
    offset, head = 0, layout.OLD_ENTRY.size
    numbers: Counter[int] = Counter()
    while offset + head <= len(data):
        length, kind, _, checksum = layout.OLD_ENTRY.unpack_from(data, offset)
        entry = data[offset + head : offset + head + length]
        if kind == 0 or len(entry) < length:
            return
        numbers[kind] += 1
        is_whole = checksum in (0, layout.old_checksum(kind, numbers[kind], entry))
        yield Entry(kind, entry, is_whole, numbers[kind], offset)
        offset += -(-(head + length) // 8) * 8
