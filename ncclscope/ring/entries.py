"""Entries of a kind and some bytes in a section: interned texts, and parts of CUDA graphs."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator

from ncclscope.ring import layout


def size_of(data: bytes) -> int:
    """Return how many bytes an entry of this data takes, with its head and the padding."""
    return -(-(layout.TEXT_ENTRY.size + len(data)) // 8) * 8


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
    layout.TEXT_ENTRY.pack_into(buffer, offset, len(data), kind, 0, checksum)
    start = offset + layout.TEXT_ENTRY.size
    buffer[start : start + len(data)] = data


def read(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the kind and the bytes of each entry, and whether its checksum fits."""
    offset, head = 0, layout.TEXT_ENTRY.size
    numbers: Counter[int] = Counter()
    while offset + head <= len(data):
        length, kind, _, checksum = layout.TEXT_ENTRY.unpack_from(data, offset)
        entry = data[offset + head : offset + head + length]
        if kind == 0 or len(entry) < length:
            return
        numbers[kind] += 1
        yield kind, entry, checksum in (0, layout.checksum(kind, numbers[kind], entry))
        offset += size_of(entry)
