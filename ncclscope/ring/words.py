"""What lies in a ring's header is stored twice: there and, before, in the mirror."""

from __future__ import annotations

import mmap
import struct

from ncclscope.ring import layout

_WORD = struct.Struct("<Q")
_ALL = (1 << 64) - 1


def put(buffer: mmap.mmap, offset: int, value: int) -> None:
    """Store a word and its complement.

    Args:
        buffer: The mapped file.
        offset: One of `layout.HEADER_*` before `layout.WORDS_END`.
        value: The number, u64.
    """
    for start in (layout.MIRROR, 0):
        _WORD.pack_into(buffer, start + offset + layout.COMPLEMENTS, value ^ _ALL)
        _WORD.pack_into(buffer, start + offset, value)


def prepare(buffer: mmap.mmap) -> None:
    """Store the complements of all words of a new file, which are zero."""
    for offset in (*range(layout.WORDS, layout.WORDS_END, _WORD.size), layout.HEADER_REUSED):
        put(buffer, offset, 0)
    layout.COUNT.pack_into(buffer, layout.HEADER_COUNT, 0, _ALL)
