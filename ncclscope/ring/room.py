"""Reserve the pages of a ring's sparse file before they are stored to.

A store to a page for which the file system has no room raises SIGBUS. So the first pages of each
part are reserved when the file is created, and further pages by the kernel's
``MADV_POPULATE_WRITE``, which answers with an error instead. It needs no file descriptor, which the
program could have closed and opened again as another file.
"""

from __future__ import annotations

import errno
import mmap
from functools import cache

from ncclscope.ring import layout

_POPULATE_WRITE = 23
FIRST_ROOM = 1024
"""Records for which a new file has room."""
_MOST_RECORDS = 4096
"""Most records that are added at once."""
_TEXTS = 16 * layout.PAGE
_AGAIN = 16


@cache
def grows() -> bool:
    """Return whether the kernel can reserve pages of a map: Linux 5.14 or later."""
    with mmap.mmap(-1, layout.PAGE) as page:
        return _populate(page, 0, layout.PAGE)


def first_parts(geometry: layout.Geometry) -> list[tuple[int, int]]:
    """Return the ranges of a new file that are reserved: offset and size in bytes."""
    if not grows():
        return [(0, geometry.total)]
    records = min(geometry.capacity, FIRST_ROOM) * layout.RECORD.size
    second = geometry.table + geometry.comms * layout.TABLE_ENTRY.size
    parts = [
        (0, geometry.strings + _TEXTS),
        (geometry.strings + layout.pages(geometry.strings_size), _TEXTS),
        (geometry.table, layout.PAGE),
        (second, layout.PAGE),
        (geometry.mark_area, geometry.carried - geometry.mark_area),
        (geometry.carried, layout.PAGE),
        (geometry.records, layout.pages(records)),
    ]
    return [*parts, (geometry.device, geometry.device_size)] if geometry.device_size else parts


class Room:
    """What is reserved of one file.

    Args:
        buffer: The mapped file, whose :func:`first_parts` are reserved.
        geometry: Offsets and sizes of its sections.

    Attributes:
        records: Number of records for which there is room.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry) -> None:
        self._buffer = buffer
        self._geometry = geometry
        self.records = min(geometry.capacity, FIRST_ROOM) if grows() else geometry.capacity
        self._ends = {geometry.strings: _TEXTS, geometry.heap: 0, geometry.graphs: 0}
        self._sizes = {
            geometry.strings: layout.pages(geometry.strings_size),
            geometry.heap: layout.pages(geometry.heap_size),
            geometry.graphs: layout.pages(geometry.graphs_size),
        }
        self._spares = {
            geometry.strings: layout.pages(geometry.strings_size),
            geometry.graphs: layout.pages(geometry.graphs_size),
        }
        self._comms = layout.PAGE // layout.TABLE_ENTRY.size

    def has(self, section: int, size: int) -> bool:
        """Return whether a section and its copy can be stored to; reserve more if necessary.

        Args:
            section: Offset of the strings, the heap or the graphs.
            size: Bytes from its begin.
        """
        end = self._ends[section]
        if size <= end or not grows():
            return True
        wanted = min(-(-size // _TEXTS) * _TEXTS, self._sizes[section])
        for start in (section, section + self._spares.get(section, 0)):
            if not _populate(self._buffer, start + end, wanted - end):
                return False
        self._ends[section] = wanted
        return True

    def has_comm(self, number: int) -> bool:
        """Return whether a communicator's entries in both tables can be stored to."""
        if number <= self._comms or not grows():
            return True
        geometry, size = self._geometry, layout.TABLE_ENTRY.size
        halves = (geometry.table, geometry.table + geometry.comms * size)
        if not all(
            _populate(self._buffer, half + self._comms * size, layout.PAGE) for half in halves
        ):
            return False
        self._comms += layout.PAGE // size
        return True

    def add_records(self) -> bool:
        """Reserve slots for further records; return whether there was room."""
        geometry, size = self._geometry, layout.RECORD.size
        wanted = min(self.records + min(self.records, _MOST_RECORDS), geometry.capacity)
        end = layout.pages(self.records * size)
        if not _populate(self._buffer, geometry.records + end, layout.pages(wanted * size) - end):
            return False
        self.records = wanted
        return True


def _populate(buffer: mmap.mmap, offset: int, size: int) -> bool:
    for _ in range(_AGAIN):
        try:
            buffer.madvise(_POPULATE_WRITE, offset, size)
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN):
                return False
        except (AttributeError, ValueError):
            return size == 0
        else:
            return True
    return False
