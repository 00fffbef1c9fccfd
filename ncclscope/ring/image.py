"""Read the bytes of a ring file safely; see :mod:`ncclscope.ring.layout` for their meaning.

Files are read, never mapped: if a mapped file is truncated, its reader dies of SIGBUS. Every
length in a file is checked against the size of the file.

A ring may be written while it is read. The copy can then be inconsistent: the copy runs
from the first byte to the last, as the writer does, so either can overtake the other. What
may still change is therefore read three times. A record is taken from the second copy when
it had ended in the first and had not begun again in the third.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ncclscope.errors import DamagedFileError
from ncclscope.ring import entries, layout
from ncclscope.untrusted import only_writer, open_regular, parse

if TYPE_CHECKING:
    from typing_extensions import Self

RECORD_DTYPE = np.dtype(
    [
        ("begin", "<u8"),
        ("time", "<u8"),
        ("hash", "<u8"),
        ("seq", "<u8"),
        ("numel", "<u8"),
        ("shape", "<u4", 4),
        ("comm", "<u2"),
        ("op", "<u2"),
        ("dtype", "u1"),
        ("redop", "u1"),
        ("ndim", "u1"),
        ("fixed", "u1"),
        ("root", "<i4"),
        ("sizes", "<u4"),
        ("site", "<u4"),
        ("out", "<u4"),
        ("graph", "<u4"),
        ("group", "<u2"),
        ("flags", "u1"),
        ("state", "u1"),
        ("end", "<u8"),
    ]
)
ENTRY_DTYPE = np.dtype(
    [("begin", "<u8"), ("seq", "<u8"), ("hash", "<u8"), ("word", "<u4"), ("end", "<u4")]
)
"""Entries of the table, where ``word`` counts point-to-point calls, and marks (communicator)."""

Records = NDArray[np.void]
Entries = NDArray[np.void]

_PLAIN_RECORD = np.dtype(f"V{RECORD_DTYPE.itemsize}")
_MOST_ABOUT = 1 << 20
_MOST_TEXT = 1 << 26
_MOST_MARKS = 1 << 20
_MOST = np.uint64(layout.MOST)
_LOW = np.uint64(0xFFFFFFFF)
_ATTEMPTS = 8
"""Attempts to read what the writer may change at any time."""


class RingImage:
    """One ring, opened for reading.

    Args:
        path: The file. Symbolic links are not followed.
        owned: Refuse a ring that another user could have written.

    Attributes:
        geometry: Offsets and sizes of its sections.
        inode: Device and inode number of the opened file.
        owner: Uid of the only user who can write it; None if others can, too.
        texts: Interned texts by kind, in the order of their numbers.

    Raises:
        DamagedFileError: The file is not a ring, or its header contradicts its size.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, owned: bool = False) -> None:
        self.path = path
        self.texts: dict[int, list[str]] = {}
        self._heap: bytes | None = None
        self._descriptor = open_regular(path, follow=False, owned=owned)
        try:
            status = os.fstat(self._descriptor)
            self.inode = status.st_dev, status.st_ino
            self.owner = only_writer(status)
            self._size = status.st_size
            self.geometry = self._read_geometry()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; data that has been read stays valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # __init__ may have failed before
            self.close()

    @property
    def heartbeat_ns(self) -> int:
        """Host clock at the last heartbeat, in ns since 1970."""
        return self.read_u64(layout.HEADER_HEARTBEAT)

    @property
    def graphs_used(self) -> int:
        """Bytes used in the graphs section; 0 if no graph was captured."""
        return min(self.read_u64(layout.HEADER_GRAPHS_USED), self.geometry.graphs_size)

    @property
    def exited_ns(self) -> int:
        """Host clock at a normal exit, in ns since 1970; 0 if none was recorded."""
        return self.read_u64(layout.HEADER_EXITED)

    # --- parts ---

    def pin_heap(self) -> None:
        """Copy the sizes lists now, before the writer overwrites them."""
        self._heap = self.read_bytes(self.geometry.heap, self.geometry.heap_size)

    def read_slots(self, start: int, stop: int) -> tuple[Records, NDArray[np.uint64]]:
        """Read the slots of positions ``start`` to ``stop - 1``, at most the newest `capacity`.

        Returns:
            The slots' contents, valid or not, and the ``begin`` of a valid record in each.
        """
        capacity, size = self.geometry.capacity, layout.RECORD.size
        start = max(start, stop - capacity, 0)
        slot, count = start % capacity, stop - start
        first = min(count, capacity - slot)
        data = self.read_bytes(self.geometry.records + slot * size, first * size)
        if first < count and len(data) == first * size:
            data += self.read_bytes(self.geometry.records, (count - first) * size)
        # The file may have been truncated since it was opened.
        records: Records = np.frombuffer(data[: len(data) // size * size], RECORD_DTYPE)
        return records, np.arange(start + 1, start + 1 + len(records), dtype=np.uint64)

    def read_stable(self, start: int, stop: int) -> Records:
        """Return the complete records at these positions of a ring that may be written now."""
        before, _ = self.read_slots(start, stop)
        records, wanted = self.read_slots(start, stop)
        after, _ = self.read_slots(start, stop)
        count = min(len(before), len(records), len(after))
        records, wanted = records[:count], wanted[:count]
        stable = whole(records, wanted)
        stable &= before["end"][:count] == wanted
        stable &= after["begin"][:count] == wanted
        return chosen(records, stable)

    def sizes(self, place: int) -> tuple[int, ...] | None:
        """Return a sizes list, or None when it has been overwritten."""
        heap_size = self.geometry.heap_size
        absolute = (place - 1) * 8
        offset = absolute % heap_size
        if offset + layout.HEAP_ENTRY.size > heap_size:
            return None
        head = self._read_heap(offset, layout.HEAP_ENTRY.size)
        if len(head) < layout.HEAP_ENTRY.size:
            return None
        begin, length, checksum = layout.HEAP_ENTRY.unpack(head)
        size = length * 8
        if begin != absolute + 1 or offset + layout.HEAP_ENTRY.size + size > heap_size:
            return None
        data = self._read_heap(offset + layout.HEAP_ENTRY.size, size)
        if len(data) < size or zlib.crc32(data, begin & 0xFFFFFFFF) != checksum:
            return None
        return tuple(np.frombuffer(data, "<i8").tolist())

    def _read_heap(self, offset: int, size: int) -> bytes:
        if self._heap is not None:
            return self._heap[offset : offset + size]
        return self.read_bytes(self.geometry.heap + offset, size)

    def text(self, kind: int, number: int) -> str | None:
        """Return an interned text; None for number 0, an unknown number, or a damaged text."""
        texts = self.texts.get(kind, [])
        return texts[number - 1] or None if 0 < number <= len(texts) else None

    def read_texts(self) -> dict[int, list[str]]:
        """Return the interned texts by kind; a text that fails its checksum is empty."""
        used = min(self.read_u64(layout.HEADER_STRINGS_USED), self.geometry.strings_size)
        data = self.read_bytes(self.geometry.strings, used)
        texts: dict[int, list[str]] = {}
        for kind, text, is_whole in entries.read(data):
            found = text.decode("utf-8", "replace") if is_whole else ""
            texts.setdefault(kind, []).append(found)
        return texts

    def read_about(self) -> dict[str, Any]:
        size = self.geometry.about_size
        best: tuple[int, dict[str, Any]] = (0, {})
        for copy in (0, 1):
            data = self.read_bytes(self.geometry.about + copy * size, size)
            if len(data) < layout.ABOUT.size:
                continue
            generation, length, checksum, _ = layout.ABOUT.unpack_from(data)
            text = data[layout.ABOUT.size : layout.ABOUT.size + length]
            if (
                generation <= best[0]
                or len(text) < length
                or checksum != zlib.crc32(text, generation & 0xFFFFFFFF)
            ):
                continue
            try:
                about = parse(text)
            except ValueError:
                continue
            if isinstance(about, dict):
                best = (generation, about)
        return best[1]

    def read_entries(self, offset: int, count: int) -> Entries:
        """Return the entries of the table or of the marks, which may be written now.

        Args:
            offset: Offset of the first entry in bytes.
            count: Number of entries.

        Returns:
            All entries, `[count]`; incomplete ones have ``begin`` zero.
        """
        size = count * ENTRY_DTYPE.itemsize
        copies = [self.read_bytes(offset, size) for _ in range(3)]
        size = min(len(data) for data in copies) // ENTRY_DTYPE.itemsize * ENTRY_DTYPE.itemsize
        before, copy, after = (np.frombuffer(data[:size], ENTRY_DTYPE) for data in copies)
        entries: Entries = copy.copy()
        begins = entries["begin"]
        low = begins & _LOW
        stable = (entries["end"] == low) & (before["end"] == low) & (after["begin"] == begins)
        # Except for replays of graphs, no communicator has more calls than there are records.
        calls = entries["seq"]
        if self.graphs_used:
            calls = calls // np.uint64(layout.MOST_GRAPH_CALLS)
        begins[~stable | (begins > _MOST) | (calls > begins)] = 0
        return entries

    def read_activities(self) -> list[tuple[int, ...]]:
        """Return the process's activities, which may be written now.

        Returns:
            For each complete one: count, since, until, number, name and detail.
        """
        found: dict[int, tuple[int, ...]] = {}
        for _ in range(_ATTEMPTS):
            copies = zip(self._activities(), self._activities(), strict=False)
            for place, (fields, again) in enumerate(copies):
                if fields == again and fields[0] == fields[-1]:
                    found.setdefault(place, fields[:-1])
            if len(found) == layout.MAX_ACTIVITIES:
                break
        return [fields for _, fields in sorted(found.items()) if _is_activity(*fields)]

    def _activities(self) -> list[tuple[int, ...]]:
        size = layout.ACTIVITY.size
        data = self.read_bytes(layout.HEADER_ACTIVITIES, layout.MAX_ACTIVITIES * size)
        return list(layout.ACTIVITY.iter_unpack(data[: len(data) // size * size]))

    def read_device(self, comms: int = layout.MAX_COMMS) -> bytes:
        """Return the GPUs' progress counters of the first `comms` communicators."""
        size = min(self.geometry.device_size, comms * layout.SLOT.size)
        return self.read_bytes(self.geometry.device, size) if size else b""

    def read_transfers(self) -> list[bytes]:
        """Return the entries of the transfers section, used or not; empty without transfers."""
        entry = layout.TRANSFER_ENTRY.size
        size = self.read_u64(layout.HEADER_TRANSFERS_SIZE)
        data = self.read_bytes(self.geometry.total, min(size, layout.MAX_TRANSFERS * entry))
        return [data[start : start + entry] for start in range(0, len(data) - entry + 1, entry)]

    @property
    def transfers_lost(self) -> int:
        """Number of transfers that found no entry."""
        return self.read_u64(layout.HEADER_TRANSFERS_LOST)

    # --- bytes ---

    def _read_geometry(self) -> layout.Geometry:
        header = self.read_bytes(0, layout.PAGE)
        if len(header) < layout.PAGE or not header.startswith(layout.MAGIC):
            raise DamagedFileError(f"{self.path} is not a ring", "it lacks a ring's header")
        _, version, record_size, *sizes = layout.HEADER.unpack_from(header)
        known = (layout.VERSION, layout.VERSION_WITH_GRAPHS)
        if version not in known or record_size != layout.RECORD.size:
            raise DamagedFileError(
                f"{self.path} is a ring of version {version}",
                f"this version of ncclscope reads versions {known[0]} and {known[1]}",
            )
        for place in (layout.HEADER_GRAPHS_SIZE, layout.HEADER_DEVICE_SIZE):
            sizes.append(int.from_bytes(header[place:][:8], "little"))
        geometry = layout.Geometry(*sizes)
        most = (1 << 32, _MOST_ABOUT, _MOST_TEXT, _MOST_TEXT, _MOST_MARKS, _MOST_TEXT, _MOST_TEXT)
        if min(sizes[:-2]) < 1 or any(
            size > limit for size, limit in zip(sizes, most, strict=True)
        ):
            raise DamagedFileError(f"{self.path} is damaged", "its header names impossible sizes")
        if geometry.total > self._size:
            raise DamagedFileError(
                f"{self.path} is truncated: its header names {geometry.total} bytes, but the file "
                f"has {self._size}"
            )
        return geometry

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file."""
        return os.pread(self._descriptor, size, offset)

    def read_u64(self, offset: int) -> int:
        """Return the number of eight bytes at `offset`."""
        return int.from_bytes(self.read_bytes(offset, 8), "little")


def _is_activity(turn: int, since: int, until: int, *others: int) -> bool:
    """Return whether these are valid fields of an activity, not an interrupted store."""
    return turn > 0 and max(turn, since, until, *others) <= layout.MOST and not 0 < until < since


def chosen(records: Records, which: NDArray[np.bool_]) -> Records:
    """Return the records where `which` is true; indexing would be slower, as it copies fields."""
    found: Records = records.compress(which)
    return found


def joined(parts: Sequence[Records]) -> Records:
    """Concatenate records, fast as in :func:`chosen`."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, RECORD_DTYPE)
    together: Records = np.concatenate([part.view(_PLAIN_RECORD) for part in parts])
    return together.view(RECORD_DTYPE)


def whole(records: Records, wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which records are complete and have the wanted ``begin``, `[records]`."""
    found: NDArray[np.bool_] = records["begin"] == wanted
    found &= records["end"] == wanted
    found &= records["seq"] <= _MOST
    return found
