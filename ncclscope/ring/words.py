"""The numbers in a ring's header that change, each of which is stored twice."""

from __future__ import annotations

import mmap
import struct

from ncclscope.ring import layout

_WORD = struct.Struct("<Q")
_ALL = (1 << 64) - 1


def put(buffer: mmap.mmap, geometry: layout.Geometry, offset: int, value: int) -> None:
    """Store a word and its complement.

    Args:
        buffer: The mapped file.
        geometry: Offsets and sizes of its sections.
        offset: One of `layout.HEADER_*` before `layout.WORDS_END`.
        value: The number, u64.
    """
    _WORD.pack_into(buffer, geometry.mirror + offset, value ^ _ALL)
    _WORD.pack_into(buffer, offset, value)


def prepare(buffer: mmap.mmap, geometry: layout.Geometry) -> None:
    """Store the complements of all words of a new file, which are zero."""
    for offset in (*range(layout.WORDS, layout.WORDS_END, _WORD.size), layout.HEADER_REUSED):
        _WORD.pack_into(buffer, geometry.mirror + offset, _ALL)
    layout.COUNT.pack_into(buffer, layout.HEADER_COUNT, 0, _ALL)
