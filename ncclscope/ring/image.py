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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ncclscope import procfs
from ncclscope.clock import difference_ns
from ncclscope.errors import DamagedFileError
from ncclscope.ring import entries, layout
from ncclscope.ring.record_checks import STATES, correct
from ncclscope.untrusted import integer, only_writer, open_regular, parse

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
_ENDS = np.dtype(
    {
        "names": ["begin", "end", "check"],
        "formats": ["<u8", "<u4", "<u4"],
        "offsets": [0, 88, layout.CHECK_OFFSET],
        "itemsize": layout.RECORD.size,
    }
)
ENTRY_DTYPE = np.dtype(
    [("begin", "<u8"), ("seq", "<u8"), ("hash", "<u8"), ("word", "<u4"), ("end", "<u4")]
)
"""Entries of the table, where ``word`` counts point-to-point calls, and marks (communicator).

``end`` is the check; before version 3 it was the lower half of ``begin``.
"""
_FACTORS = np.array(layout.FACTORS, np.uint64)
_HALF = np.uint64(32)

Records = NDArray[np.void]
Entries = NDArray[np.void]

_PLAIN_RECORD = np.dtype(f"V{RECORD_DTYPE.itemsize}")
_MOST_ABOUT = 1 << 20
_MOST_TEXT = 1 << 26
_MOST_MARKS = 1 << 20
_MOST = np.uint64(layout.MOST)
_LOW = np.uint64(0xFFFFFFFF)
_MOST_COMMS = 0xFFFF
_ALL = (1 << 64) - 1
_PRECISION_NS = 10_000
"""How far two samples of the same difference of clocks may lie apart."""
_ATTEMPTS = 8
"""Attempts to read what the writer may change at any time."""


class RingImage:
    """One ring, opened for reading.

    Args:
        path: The file. Symbolic links are not followed.
        owned: Refuse a ring that another user could have written.

    Attributes:
        geometry: Offsets and sizes of its sections.
        clock: What its process added to CLOCK_MONOTONIC in each time, in ns; 0 if not known.
        capacity: Number of slots that the records use.
        shift_ns: What is added to times, where the clock of this host was set since the ring began.
        damage: Parts in which something does not fit its check, see :data:`DAMAGED`.
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
        self.damage: set[str] = set()
        self.shift_ns = 0
        self.clock = 0
        self._heap: bytes | None = None
        self._descriptor = open_regular(path, follow=False, owned=owned)
        try:
            status = os.fstat(self._descriptor)
            self.inode = status.st_dev, status.st_ino
            self.owner = only_writer(status)
            self._size = status.st_size
            self.geometry = self._read_geometry()
            self.shift_ns = self._find_shift()
            self.read_capacity()
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
        return self.shifted(self.word(layout.HEADER_HEARTBEAT))

    def started_ns(self, about: Mapping[str, Any]) -> int:
        """Return when the process of `about` began to record, in ns since 1970; 0 if unknown."""
        return self.shifted(integer(about.get("started_ns")) or 0)

    @property
    def graphs_used(self) -> int:
        """Bytes used in the graphs section; 0 if no graph was captured."""
        return min(self.word(layout.HEADER_GRAPHS_USED), self.geometry.graphs_size)

    @property
    def exited_ns(self) -> int:
        """Host clock at a normal exit, in ns since 1970; 0 if none was recorded."""
        return self.shifted(self.word(layout.HEADER_EXITED))

    @property
    def count(self) -> int:
        """Number of records made, as the header states it; -1 if it does not."""
        if not self.geometry.checked:
            return -1
        for _ in range(_ATTEMPTS):
            count, other = layout.COUNT.unpack(
                self.read_bytes(layout.HEADER_COUNT, layout.COUNT.size)
            )
            if 0 <= count - (other ^ _ALL) <= 1 and count <= layout.MOST:
                return int(count)
        self.damage.add("count")
        return -1

    def shifted(self, time_ns: int) -> int:
        """Return a time of the ring by this host's clock of today; 0 stays 0."""
        return time_ns and time_ns + self.shift_ns

    def read_capacity(self) -> None:
        """Read the number of slots, which changes at most once: if there is no room for more."""
        wrap = self.word(layout.HEADER_WRAP) if self.geometry.checked else 0
        most = self.geometry.capacity
        self.capacity = wrap if layout.MIN_CAPACITY <= wrap < most else most

    def word(self, offset: int) -> int:
        """Return a number of the header that changes, one of `layout.HEADER_*`.

        It only grows, and is stored twice, with a complement each. The larger of two whole copies
        counts. Without a whole copy it is damaged, and the smaller number counts.
        """
        if not self.geometry.checked:
            return self.read_u64(offset)
        for _ in range(_ATTEMPTS):
            pairs = [
                (self.read_u64(start), self.read_u64(start + layout.COMPLEMENTS) ^ _ALL)
                for start in (offset, layout.MIRROR + offset)
            ]
            if whole := [value for value, other in pairs if value == other]:
                return max(whole)
        self.damage.add("header")
        return min(min(pair) for pair in pairs)

    # --- parts ---

    def pin_heap(self) -> None:
        """Copy the sizes lists now, before the writer overwrites them."""
        self._heap = self.read_bytes(self.geometry.heap, self.geometry.heap_size)

    def read_slots(self, start: int, stop: int) -> tuple[Records, NDArray[np.uint64]]:
        """Read the slots of positions ``start`` to ``stop - 1``, at most the newest `capacity`.

        Returns:
            The slots' contents, valid or not, and the ``begin`` of a valid record in each.
        """
        data, wanted = self._read_slots(start, stop)
        return self._checked(data), wanted

    def _read_slots(self, start: int, stop: int) -> tuple[bytes, NDArray[np.uint64]]:
        capacity, size = self.capacity, layout.RECORD.size
        start = max(start, stop - capacity, 0)
        slot, count = start % capacity, stop - start
        first = min(count, capacity - slot)
        data = self.read_bytes(self.geometry.records + slot * size, first * size)
        if first < count and len(data) == first * size:
            data += self.read_bytes(self.geometry.records, (count - first) * size)
        # The file may have been truncated since it was opened.
        data = data[: len(data) // size * size]
        return data, np.arange(start + 1, start + 1 + len(data) // size, dtype=np.uint64)

    def _checked(self, data: bytes) -> Records:
        """Return records, a flipped bit corrected; ``end`` is 0 where the check does not fit."""
        if not self.geometry.checked:
            old: Records = np.frombuffer(data, RECORD_DTYPE)
            return old
        own = bytearray(data)
        good = correct(own)
        records: Records = np.frombuffer(own, RECORD_DTYPE)
        records["state"] = STATES[records["state"]]
        records["end"] = np.where(good, records["begin"], np.uint64(0))
        if self.shift_ns:
            records["time"] += np.uint64(self.shift_ns & _ALL)
        return records

    def read_stable(self, start: int, stop: int) -> Records:
        """Return the complete records at these positions of a ring that may be written now."""
        before, _ = self._read_slots(start, stop)
        data, wanted = self._read_slots(start, stop)
        after, _ = self._read_slots(start, stop)
        size = min(len(before), len(data), len(after))
        mask = _LOW if self.geometry.checked else np.uint64(_ALL)
        dtype = _ENDS if self.geometry.checked else RECORD_DTYPE
        wanted = wanted[: size // layout.RECORD.size]
        stable = np.frombuffer(before[:size], dtype)["end"] == wanted & mask
        stable &= np.frombuffer(after[:size], dtype)["begin"] == wanted
        if not stable.any():
            return np.empty(0, RECORD_DTYPE)
        stored = np.frombuffer(data[:size], _PLAIN_RECORD)
        records = self._checked(stored.compress(stable).tobytes())
        return chosen(records, whole(records, wanted.compress(stable)))

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
        used = min(self.word(layout.HEADER_STRINGS_USED), self.geometry.strings_size)
        texts: dict[int, list[str]] = {}
        geometry, copies = self.geometry, (b"", b"")
        for attempt in range(_ATTEMPTS):
            before = copies
            copies = self.read_copies(geometry.strings, geometry.strings_size, used)
            if attempt and copies == before:
                self.damage.add("texts")
                break
            texts = {}
            is_damaged = False
            for kind, text, is_whole, *_ in entries.read(*copies, checked=geometry.checked):
                found = text.decode("utf-8", "replace") if is_whole else ""
                texts.setdefault(kind, []).append(found)
                is_damaged |= not is_whole
            if not is_damaged:
                break
            # A writer overwrites the texts of communicators that were destroyed.
            if attempt == _ATTEMPTS - 1 or not self.geometry.checked:
                self.damage.add("texts")
                break
        return texts

    def read_copies(self, section: int, size: int, used: int) -> tuple[bytes, bytes]:
        """Return the used bytes of a section and of its copy, which old versions do not have.

        Args:
            section: Offset of the section.
            size: Its size in bytes.
            used: Number of its bytes in use.
        """
        spare = b""
        if self.geometry.checked:
            spare = self.read_bytes(section + layout.pages(size), used)
        return self.read_bytes(section, used), spare

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
        if self.geometry.checked and best[0] < self.word(layout.HEADER_ABOUTS):
            self.damage.add("about")
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
        copies = [self.read_bytes(offset, size) for _ in range(1 if self.geometry.checked else 3)]
        size = min(len(data) for data in copies) // ENTRY_DTYPE.itemsize * ENTRY_DTYPE.itemsize
        before, after = (np.frombuffer(copies[place][:size], ENTRY_DTYPE) for place in (0, -1))
        entries: Entries = np.frombuffer(copies[len(copies) // 2][:size], ENTRY_DTYPE).copy()
        begins = entries["begin"]
        if self.geometry.checked:
            words = entries.view("<u8").reshape(-1, 4).copy()
            words[:, 3] &= _LOW
            stable = (words @ _FACTORS[:4]) >> _HALF == entries["end"]
        else:
            low = begins & _LOW
            stable = (entries["end"] == low) & (before["end"] == low)
            stable &= after["begin"] == begins
        # Except for replays of graphs, no communicator has more calls than there are records.
        calls = entries["seq"]
        too_many = calls > begins
        if too_many.any() and self.graphs_used:
            too_many = calls // np.uint64(layout.MOST_GRAPH_CALLS) > begins
        begins[~stable | (begins > _MOST) | too_many] = 0
        return entries

    def read_activities(self) -> list[tuple[int, ...]]:
        """Return the process's activities, which may be written now.

        Returns:
            For each complete one: count, since, until, number, name and detail.
        """
        found: dict[int, tuple[int, ...]] = {}
        damaged: set[int] = set()
        starts = (layout.MIRROR, 0) if self.geometry.checked else (0,)
        for _ in range(_ATTEMPTS):
            damaged.clear()
            for start in starts:
                copies = zip(self._activities(start), self._activities(start), strict=False)
                for place, (entry, again) in enumerate(copies):
                    fields = self._activity(entry)
                    if fields is None or entry != again:
                        damaged.add(place)
                    elif place not in found or fields[0] >= found[place][0]:
                        found[place] = fields
            if len(found) == layout.MAX_ACTIVITIES:
                break
        if damaged - found.keys():
            self.damage.add("activities")
        return [fields for _, fields in sorted(found.items()) if _is_activity(*fields)]

    def _activities(self, start: int) -> list[bytes]:
        size = layout.ACTIVITY.size
        offset = start + layout.HEADER_ACTIVITIES
        data = self.read_bytes(offset, layout.MAX_ACTIVITIES * size)
        return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]

    def _activity(self, entry: bytes) -> tuple[int, ...] | None:
        """Return the fields of an activity; None if they do not fit each other."""
        *fields, end, check = layout.ACTIVITY.unpack(entry)
        if not self.geometry.checked:
            return tuple(fields) if end | check << 32 == fields[0] else None
        if any(entry) and check != layout.check(entry[:-4] + bytes(4)):
            return None
        fields[1], fields[2] = self.shifted(fields[1]), self.shifted(fields[2])
        return tuple(fields)

    def read_device(self, comms: int = layout.DEVICE_COMMS) -> bytes:
        """Return the GPUs' progress counters of the first `comms` communicators."""
        size = min(self.geometry.device_size, comms * layout.SLOT.size)
        return self.read_bytes(self.geometry.device, size) if size else b""

    def read_transfers(self) -> list[bytes]:
        """Return the entries of the transfers section, used or not; empty without transfers."""
        entry = layout.TRANSFER_ENTRY.size
        size = self.word(layout.HEADER_TRANSFERS_SIZE)
        data = self.read_bytes(self.geometry.total, min(size, layout.MAX_TRANSFERS * entry))
        return [data[start : start + entry] for start in range(0, len(data) - entry + 1, entry)]

    @property
    def transfers_lost(self) -> int:
        """Number of transfers that found no entry."""
        return self.word(layout.HEADER_TRANSFERS_LOST)

    # --- bytes ---

    def _read_geometry(self) -> layout.Geometry:
        header = self.read_bytes(0, layout.PAGE)
        if not _is_header(header) and _is_header(mirror := self._read_mirror()):
            header = mirror
        if len(header) < layout.PAGE or not header.startswith(layout.MAGIC):
            raise DamagedFileError(f"{self.path} is not a ring", "it lacks a ring's header")
        _, version, record_size, *sizes = layout.OLD_HEADER.unpack_from(header)
        if version not in layout.VERSIONS or record_size != layout.RECORD.size:
            raise DamagedFileError(
                f"{self.path} is a ring of version {version}",
                f"this version of ncclscope reads versions 1 to {layout.VERSIONS[-1]}",
            )
        checked = version == layout.VERSION
        if not checked and any(header[layout.OLD_HEADER.size : layout.WORDS]):
            # One bit makes version 2 of 3, of which nothing would be checked then.
            raise DamagedFileError(f"{self.path} is damaged", "its header does not fit its version")
        if checked:
            self.clock = self._read_checked(header, sizes)
        else:
            sizes.append(layout.OLD_COMMS)
            for place in (layout.OLD_GRAPHS_SIZE, layout.OLD_DEVICE_SIZE):
                sizes.append(int.from_bytes(header[place:][:8], "little"))
        geometry = replace(layout.Geometry(*sizes), checked=checked)
        most = (
            *(1 << 32, _MOST_ABOUT, _MOST_TEXT, _MOST_TEXT, _MOST_MARKS),
            *(_MOST_COMMS, _MOST_TEXT, _MOST_TEXT),
        )
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

    def _find_shift(self) -> int:
        """Return by how much the clock of this host was set or slewed since the process began."""
        if not self.geometry.checked:
            return 0
        shift = round((difference_ns() - self.clock) / _PRECISION_NS) * _PRECISION_NS
        boot = procfs.boot_id()
        return shift if shift and boot and self.read_about().get("boot_id") == boot else 0

    def _read_mirror(self) -> bytes:
        return self.read_bytes(layout.MIRROR, layout.PAGE)

    def _read_checked(self, header: bytes, sizes: list[int]) -> int:
        """Add the sizes that version 3 has besides; return its clock."""
        *_, comms, graphs, device, clock = layout.HEADER.unpack_from(header)
        if not _is_header(header):
            raise DamagedFileError(f"{self.path} is damaged", "its header does not fit its check")
        sizes += comms, graphs, device
        return int(clock)

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file."""
        return os.pread(self._descriptor, size, offset)

    def read_u64(self, offset: int) -> int:
        """Return the number of eight bytes at `offset`."""
        return int.from_bytes(self.read_bytes(offset, 8), "little")


def _is_header(header: bytes) -> bool:
    """Return whether a header of version 3 fits its check."""
    check = int.from_bytes(header[layout.HEADER_CHECK :][:4], "little")
    return header.startswith(layout.MAGIC) and check == zlib.crc32(header[: layout.HEADER.size])


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
