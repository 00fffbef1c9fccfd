"""Where a ring holds what, as far as its reader makes it public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile

__all__ = ["BLOCK", "LAST", "PAGE", "Places", "places_of"]

PAGE = 4096
BLOCK = 32
"""Bytes that count as in use together."""
LAST = 16
"""Newest records whose bits are flipped, beside the slot of the next one."""


@dataclass(frozen=True)
class Places:
    """What parts of a ring are in use.

    Attributes:
        size: Bytes of the file.
        sections: Offsets at which the sections begin and end, by name.
        used: The blocks in use of each section but the records, as offsets in the file.
        newest: The slots of the newest records and of the next one, as ranges of bytes.
        slots: Those of the newest records alone.
    """

    size: int
    sections: dict[str, range]
    used: dict[str, tuple[int, ...]]
    newest: tuple[range, ...]
    slots: tuple[range, ...]


def places_of(path: Path, ages: Sequence[bytes]) -> Places:
    """Return the parts of a ring.

    Args:
        path: The ring at its last age, which the reader describes.
        ages: Its contents at all ages; what one of them uses is in use.
    """
    with RingFile(path) as ring:
        geometry, head = ring.geometry, ring.head
    size = len(ages[-1])
    starts = {"header": 0}
    for name, member in vars(layout.Geometry).items():
        if isinstance(member, property):
            starts[name] = getattr(geometry, name)
    ordered = sorted(starts.items(), key=lambda item: item[1])
    ends = [start for _, start in ordered[1:]] + [size]
    sections = {
        {"mark_area": "marks", "total": "transfers"}.get(name, name): range(start, end)
        for (name, start), end in zip(ordered, ends, strict=True)
        if end > start
    }
    record = layout.RECORD.size
    places = [position % geometry.capacity for position in range(max(head - LAST, 0), head + 1)]
    newest = tuple(
        range(geometry.records + place * record, geometry.records + (place + 1) * record)
        for place in places
    )
    used = {name: _used(section, ages) for name, section in sections.items() if name != "records"}
    return Places(size, sections, used, newest, newest[:-1])


def _used(section: range, ages: Sequence[bytes]) -> tuple[int, ...]:
    """Return the offsets of the blocks of a section that hold something at some age."""
    found: set[int] = set()
    for data in ages:
        part = np.frombuffer(data[section.start : section.stop], np.uint8)
        part = part[: len(part) // BLOCK * BLOCK].reshape(-1, BLOCK)
        found.update(np.flatnonzero(part.any(axis=1)).tolist())
    return tuple(section.start + block * BLOCK for block in sorted(found))
