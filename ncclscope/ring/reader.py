"""Reads one ring; see :mod:`ncclscope.ring.layout` for the bytes.

A ring may be a thousand times larger than what a question needs, so nothing is read
before it is asked for: the end of the stream is found through the communicator table, a
call through the marks. Files are read, never mapped, since a map of a file that is being
cut short kills the reader; and no length in a file is believed without a look at its size.
"""

from __future__ import annotations

import bisect
import json
import os
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclscope.errors import DamagedFileError
from ncclscope.ring import layout
from ncclscope.signature import BASE

__all__ = ["RECORD_DTYPE", "ChannelState", "RingFile"]

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
        ("group", "<u4"),
        ("graph", "<u4"),
        ("flags", "<u2"),
        ("state", "u1"),
        ("spare", "u1"),
        ("end", "<u4"),
    ]
)
_CIRCLE_DTYPE = np.dtype(
    [("begin", "<u8"), ("seq", "<u8"), ("hash", "<u8"), ("word", "<u4"), ("end", "<u4")]
)
"""Of table entries, where ``word`` counts point-to-point calls, and of marks (communicator)."""

Records = NDArray[np.void]

CHUNK = 1024
_CHUNKS_KEPT = 64
BASE_INVERSE = pow(BASE, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class ChannelState:
    """How far one communicator has come: collectives, running hash, point-to-point calls."""

    seq: int
    hash: int
    p2p: int


class RingFile:
    """One ring, opened for reading.

    Args:
        path: The file. Symbolic links are not followed.

    Raises:
        DamagedFileError: It is no ring, or its header contradicts its size.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._descriptor).st_size
            self.geometry = self._read_geometry()
            self.texts = self._read_texts()
            self.about = self._read_about()
            marks = self._read_circle(self.geometry.mark_area, self.geometry.marks)
            self._marks = np.sort(marks, order="begin")
            self._chunks: OrderedDict[int, Records] = OrderedDict()
            self.states: dict[int, ChannelState] = {}
            self.head = self._find_head()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file; what has been read stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RingFile:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    @property
    def oldest(self) -> int:
        """Position of the oldest record that may be left."""
        return max(0, self.head - self.geometry.capacity)

    @property
    def heartbeat_ns(self) -> int:
        """Host clock at the last sign of life."""
        return self._u64(layout.HEADER_HEARTBEAT)

    @property
    def exited_ns(self) -> int:
        """Host clock when the process ended in order; 0 when it did not say so."""
        return self._u64(layout.HEADER_EXITED)

    # --- records ---------------------------------------------------------------------------

    def window(self, start: int, stop: int) -> Records:
        """Returns the whole records at positions ``start`` to ``stop - 1``, oldest first.

        Records that are gone or torn are left out.
        """
        start, stop = max(start, self.oldest), min(stop, self.head)
        if start >= stop:
            return np.empty(0, RECORD_DTYPE)
        parts = [self._chunk(number) for number in range(start // CHUNK, (stop - 1) // CHUNK + 1)]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        begins = joined["begin"]
        low, high = np.searchsorted(begins, [start + 1, stop + 1])
        found: Records = joined[low:high]
        return found

    def marks(self, comm: int) -> tuple[list[int], list[int], list[int]]:
        """Returns seqs, positions and running hashes of a communicator's marks that are kept."""
        mine = self._marks[(self._marks["word"] == comm) & (self._marks["begin"] > self.oldest)]
        return (
            mine["seq"].tolist(),
            (mine["begin"] - np.uint64(1)).tolist(),
            mine["hash"].tolist(),
        )

    def _chunk(self, number: int) -> Records:
        """The whole records among positions ``number * CHUNK`` and the next chunk's first."""
        kept = self._chunks.get(number)
        if kept is not None:
            self._chunks.move_to_end(number)
            return kept
        start, stop = number * CHUNK, min((number + 1) * CHUNK, self.head)
        chunk = self._read_records(start, stop)
        self._chunks[number] = chunk
        if len(self._chunks) > _CHUNKS_KEPT:
            self._chunks.popitem(last=False)
        return chunk

    def _read_records(self, start: int, stop: int) -> Records:
        capacity = self.geometry.capacity
        start = max(start, 0)
        slot, count = start % capacity, stop - start
        first = min(count, capacity - slot)
        size = layout.RECORD.size
        data = self._read(self.geometry.records + slot * size, first * size)
        if first < count:
            data += self._read(self.geometry.records, (count - first) * size)
        records = np.frombuffer(data, RECORD_DTYPE)
        expected = np.arange(start + 1, start + 1 + len(records), dtype=np.uint64)
        whole = (records["begin"] == expected) & (
            records["end"] == (expected & np.uint64(0xFFFFFFFF))
        )
        return records[whole]

    def _find_head(self) -> int:
        """Finds how many records were made, and each communicator's state at that point."""
        half = layout.MAX_COMMS
        table = self._read_circle(self.geometry.table, 2 * half, sparse=True)
        known: dict[int, Any] = {}
        for place, entry in table:
            comm = place % half + 1
            if comm not in known or entry["begin"] > known[comm]["begin"]:
                known[comm] = entry
        since = max((int(entry["begin"]) - 1 for entry in known.values()), default=0)
        # Threads may be a few records apart from each other, hence a gap is no end.
        reach = layout.TABLE_EVERY + 256
        while True:
            before = since
            tail = self._read_stable(since, since + reach)
            if len(tail):
                since = int(tail["begin"][-1])
            if not len(tail) or since - before < reach - 256:
                break
        for comm, entry in known.items():
            self.states[comm] = ChannelState(
                int(entry["seq"]), int(entry["hash"]), int(entry["word"])
            )
        self.head = since
        start = min((int(entry["begin"]) - 1 for entry in known.values()), default=0)
        for record in self.window(start, since):
            self._follow(record)
        return since

    def _follow(self, record: Any) -> None:
        if record["fixed"] & layout.FIXED_STEP:
            return
        comm, seq = int(record["comm"]), int(record["seq"])
        state = self.states.get(comm, ChannelState(0, 0, 0))
        if record["fixed"] & layout.FIXED_P2P:
            if seq > state.p2p:
                self.states[comm] = ChannelState(state.seq, state.hash, seq)
        elif seq > state.seq:
            self.states[comm] = ChannelState(seq, int(record["hash"]), state.p2p)

    def _read_stable(self, start: int, stop: int) -> Records:
        """Reads twice and keeps what is the same: the writer may be at work on these."""
        first = self._read_records(start, stop)
        second = self._read_records(start, stop)
        common = np.intersect1d(first["begin"], second["begin"])
        first = first[np.isin(first["begin"], common)]
        second = second[np.isin(second["begin"], common)]
        stable: Records = first[
            (first["hash"] == second["hash"]) & (first["time"] == second["time"])
        ]
        return stable

    # --- what records refer to ---------------------------------------------------------------

    def sizes(self, place: int) -> tuple[int, ...] | None:
        """Returns a sizes list, or None when it has been overwritten."""
        heap_size = self.geometry.heap_size
        absolute = (place - 1) * 8
        offset = absolute % heap_size
        if offset + layout.HEAP_ENTRY.size > heap_size:
            return None
        head = self._read(self.geometry.heap + offset, layout.HEAP_ENTRY.size)
        if len(head) < layout.HEAP_ENTRY.size:
            return None
        begin, length, _ = layout.HEAP_ENTRY.unpack(head)
        size = length * 8
        if begin != absolute + 1 or offset + layout.HEAP_ENTRY.size + size > heap_size:
            return None
        data = self._read(self.geometry.heap + offset + layout.HEAP_ENTRY.size, size)
        if len(data) < size:
            return None
        return tuple(np.frombuffer(data, "<i8").tolist())

    def text(self, kind: int, number: int) -> str | None:
        """Returns an interned text; None for number 0 or one that is not there."""
        texts = self.texts.get(kind, [])
        return texts[number - 1] if 0 < number <= len(texts) else None

    def _read_texts(self) -> dict[int, list[str]]:
        used = min(self._u64(layout.HEADER_STRINGS_USED), self.geometry.strings_size)
        data = self._read(self.geometry.strings, used)
        texts: dict[int, list[str]] = {}
        offset = 0
        while offset + layout.TEXT_ENTRY.size <= len(data):
            length, kind, _, _ = layout.TEXT_ENTRY.unpack_from(data, offset)
            start = offset + layout.TEXT_ENTRY.size
            if kind == 0 or start + length > len(data):
                break
            texts.setdefault(kind, []).append(
                data[start : start + length].decode("utf-8", "replace")
            )
            offset = -(-(start + length) // 8) * 8
        return texts

    def _read_about(self) -> dict[str, Any]:
        size = self.geometry.about_size
        best: tuple[int, dict[str, Any]] = (0, {})
        for copy in (0, 1):
            data = self._read(self.geometry.about + copy * size, size)
            if len(data) < layout.ABOUT.size:
                continue
            generation, length, checksum, _ = layout.ABOUT.unpack_from(data)
            text = data[layout.ABOUT.size : layout.ABOUT.size + length]
            if generation <= best[0] or len(text) < length or zlib.crc32(text) != checksum:
                continue
            try:
                about = json.loads(text)
            except ValueError:
                continue
            if isinstance(about, dict):
                best = (generation, about)
        return best[1]

    def _read_circle(self, offset: int, count: int, *, sparse: bool = False) -> Any:
        data = self._read(offset, count * _CIRCLE_DTYPE.itemsize)
        entries = np.frombuffer(
            data[: len(data) // _CIRCLE_DTYPE.itemsize * _CIRCLE_DTYPE.itemsize], _CIRCLE_DTYPE
        )
        whole = (entries["begin"] != 0) & (
            entries["end"] == (entries["begin"] & np.uint64(0xFFFFFFFF))
        )
        if sparse:
            return [(int(place), entries[place]) for place in np.flatnonzero(whole)]
        return entries[whole]

    # --- bytes ---------------------------------------------------------------------------------

    def _read_geometry(self) -> layout.Geometry:
        header = self._read(0, layout.PAGE)
        if len(header) < layout.PAGE or not header.startswith(layout.MAGIC):
            raise DamagedFileError(f"{self.path} is not a ring", "its first bytes are not ours")
        _, version, record_size, *sizes = layout.HEADER.unpack_from(header)
        if version != layout.VERSION or record_size != layout.RECORD.size:
            raise DamagedFileError(
                f"{self.path} is a ring of version {version}",
                f"this ncclscope reads version {layout.VERSION}",
            )
        geometry = layout.Geometry(*sizes)
        if min(sizes) < 1 or max(sizes) > self._size or geometry.total > self._size:
            raise DamagedFileError(
                f"{self.path} is cut short or damaged: its header speaks of "
                f"{geometry.total} bytes, the file has {self._size}"
            )
        return geometry

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def _u64(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 8), "little")


def hash_before(after: int, signature: int) -> int:
    """Returns the running hash before a call from the one after it."""
    return (after - signature) * BASE_INVERSE & ((1 << 64) - 1)


def bracket(seqs: list[int], seq: int) -> tuple[int, int]:
    """Returns the places of the marks around a seq: the last at or before, the first after."""
    after = bisect.bisect_right(seqs, seq)
    return after - 1, after
