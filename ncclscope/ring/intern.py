"""Intern texts and sizes lists of a ring: each is stored once and gets a number."""

from __future__ import annotations

import mmap
import threading
import zlib
from collections.abc import Sequence

from ncclscope.model import sites
from ncclscope.ring import entries, layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.room import Room

_SIZES_KEPT = 4096
_MOST_USED = {layout.KIND_SHAPE: layout.MOST_SHAPES, layout.KIND_SITE: layout.MOST_SITES}
"""Bytes that texts of a kind may take, of which a program may have any number."""


class Interner:
    """Writes the strings section and the heap of one ring.

    Any thread looks up known texts without a lock. So a text must be in the file before it can be
    looked up: the record that refers to it may be the last before the process is killed.

    Args:
        buffer: The mapped file.
        geometry: Offsets and sizes of its sections.
        room: What is reserved of it.

    Attributes:
        refused: Number of texts and sizes lists not written because a signal handler interrupted
            a write, or the file is detached. Do not cache parameters packed meanwhile.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry, room: Room) -> None:
        self._room = room
        self._buffer: mmap.mmap | None = buffer
        self._geometry = geometry
        # Only a signal handler or a finalizer re-enters it, and then finds `_busy` set.
        self._lock = threading.RLock()
        self._busy = False
        self.refused = 0
        self._used = 0
        self._used_by = {layout.KIND_SHAPE: 0, layout.KIND_SITE: 0}
        self._numbers: dict[int, dict[str, int]] = {
            kind: {} for kind in range(1, layout.KIND_ACTIVITY + 1)
        }
        self._sizes: dict[tuple[int, ...], int] = {}
        self._heap_used = 0

    def fixed(
        self,
        channel: Channel,
        op: str,
        *,
        dtype: str | None = None,
        redop: str | None = None,
        root: int | None = None,
        numel: int = 0,
        shape: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        out_shape: Sequence[int] | None = None,
        site: str | None = None,
        p2p: bool = False,
    ) -> bytes:
        """Pack the part of a record that repeats from call to call, interning its texts.

        Callers keep the result for the next call with the same parameters. With ``sizes`` it
        expires, since the heap is a circular buffer (see :meth:`holds_sizes`).

        Args:
            channel: The communicator.
            op: Canonical name of the operation.
            dtype: Element type.
            redop: Reduction.
            root: Root or peer as a rank of the communicator.
            numel: Number of elements of the input.
            shape: Shape of the input; None if unknown.
            sizes: Sizes list of the call.
            out_shape: Shape of the output.
            site: Call site.
            p2p: Whether it is a send or a receive.
        """
        text, small = self.text, self._small
        dims = [0, 0, 0, 0]
        ndim = layout.NO_SHAPE
        if shape is not None:
            ndim = min(len(shape), 4)
            for place, size in enumerate(shape):
                dims[min(place, 3)] = size if place <= 3 else dims[3] * size
        spelled = None if out_shape is None else ",".join(map(str, out_shape)) or "()"
        return layout.FIXED.pack(
            min(max(numel, 0), 0xFFFFFFFFFFFFFFFF),
            *(min(max(size, 0), 0xFFFFFFFF) for size in dims),
            channel.index,
            text(layout.KIND_OP, op),
            small(layout.KIND_DTYPE, dtype),
            small(layout.KIND_REDOP, redop),
            ndim,
            layout.FIXED_P2P if p2p else 0,
            -1 if root is None or not 0 <= root < 1 << 31 else root,
            0 if sizes is None else self.sizes(tuple(sizes)),
            self._site(site),
            text(layout.KIND_SHAPE, spelled),
        )

    def holds_sizes(self, fixed: bytes) -> bool:
        """Return whether the sizes list of packed parameters will not be overwritten soon."""
        return self._holds(int.from_bytes(fixed[layout.FIXED_SIZES], "little"))

    def sizes_of(self, fixed: bytes) -> tuple[int, ...] | None:
        """Return the sizes list of packed parameters; None if there is none or it has expired."""
        place = int.from_bytes(fixed[layout.FIXED_SIZES], "little")
        if not place or self._buffer is None:
            return None
        absolute = (place - 1) * 8
        offset = self._geometry.heap + absolute % self._geometry.heap_size
        begin, length, _ = layout.HEAP_ENTRY.unpack_from(self._buffer, offset)
        if begin != absolute + 1:
            return None
        start = offset + layout.HEAP_ENTRY.size
        data = self._buffer[start : start + 8 * length]
        return tuple(
            int.from_bytes(data[at : at + 8], "little", signed=True)
            for at in range(0, len(data), 8)
        )

    def text(self, kind: int, text: str | None) -> int:
        """Return the number of a text within its kind; 0 for None or if there is no room."""
        if text is None:
            return 0
        known = self._numbers[kind].get(text)
        if known is not None:
            return known
        with self._lock:
            if self._busy or self._buffer is None:
                self.refused += 1
                return 0
            self._busy = True
            try:
                return self._append_text(self._buffer, kind, text)
            finally:
                self._busy = False

    def sizes(self, sizes: tuple[int, ...]) -> int:
        """Return a record's reference to a sizes list; 0 if there is no room."""
        known = self._sizes.get(sizes)
        if known is not None and self._holds(known):
            return known
        with self._lock:
            if self._busy or self._buffer is None:
                self.refused += 1
                return 0
            self._busy = True
            try:
                return self._append_sizes(self._buffer, sizes)
            finally:
                self._busy = False

    def detach(self) -> None:
        """Stop writing to the file; new texts get number 0 from here on."""
        self._buffer = None
        # The lock may have been held by a thread that does not exist after a fork.
        self._lock = threading.RLock()

    def _site(self, site: str | None) -> int:
        """Return the number of a call site, shortened once half of the section is used."""
        if site is not None and self._is_scarce(site):
            site = sites.read(site).site
        return self.text(layout.KIND_SITE, site)

    def _is_scarce(self, site: str) -> bool:
        """Return whether a new call site should be shortened."""
        scarce = self._used_by[layout.KIND_SITE] > layout.MOST_SITES * 2 // 3
        return scarce and site not in self._numbers[layout.KIND_SITE]

    def _small(self, kind: int, text: str | None) -> int:
        """Return the number of a text for an eight-bit field; `NO_ROOM` if it does not fit."""
        number = self.text(kind, text)
        if text is not None and not 0 < number < layout.NO_ROOM:
            return layout.NO_ROOM
        return number

    def _holds(self, place: int) -> bool:
        """Return whether a sizes list is in the newer half of the heap, a circular buffer."""
        return not place or 0 <= self._heap_used - (place - 1) * 8 < self._geometry.heap_size // 2

    def _append_text(self, buffer: mmap.mmap, kind: int, text: str) -> int:
        numbers = self._numbers[kind]
        if text in numbers:  # another thread was faster
            return numbers[text]
        data = text.encode("utf-8", "replace")
        number = len(numbers) + 1
        if self.append(buffer, kind, number, data) is None:
            return 0
        numbers[text] = number
        return number

    def append(self, buffer: mmap.mmap, kind: int, number: int, data: bytes) -> int | None:
        """Write a text that is not interned; the caller serialises.

        Args:
            buffer: The mapped file.
            kind: One of `layout.KIND_*`.
            number: Its number within the kind.
            data: The text.

        Returns:
            Offset of the entry in the file; None without room.
        """
        section, size = self._geometry.strings, entries.size_of(data)
        used = self._used_by.get(kind, 0) + size
        end = self._used + size
        if (
            used > _MOST_USED.get(kind, used)
            or end > self._geometry.strings_size
            or not self._room.has(section, end)
        ):
            return None
        offset, self._used = section + self._used, end
        self.put(buffer, offset, kind, number, data)
        if kind in self._used_by:
            self._used_by[kind] = used
        layout.put_word(buffer, layout.HEADER_STRINGS_USED, end)
        return offset

    def put(self, buffer: mmap.mmap, offset: int, kind: int, number: int, data: bytes) -> None:
        """Write a text twice; arguments as for :func:`ncclscope.ring.entries.put`."""
        spare = layout.pages(self._geometry.strings_size)
        entries.put(buffer, offset + spare, kind, number, data)
        entries.put(buffer, offset, kind, number, data)

    def _append_sizes(self, buffer: mmap.mmap, sizes: tuple[int, ...]) -> int:
        heap_size = self._geometry.heap_size
        try:
            data = b"".join(value.to_bytes(8, "little", signed=True) for value in sizes)
        except OverflowError:
            return 0
        size = layout.HEAP_ENTRY.size + len(data)
        if size > heap_size // 4:
            return 0
        start = self._heap_used
        if start % heap_size + size > heap_size:  # entries do not wrap around the end
            start += heap_size - start % heap_size
        if start >= layout.HEAP_END // heap_size * heap_size:
            start = 0
            self._sizes.clear()
        if not self._room.has(self._geometry.heap, start % heap_size + size):
            return 0
        offset = self._geometry.heap + start % heap_size
        self._heap_used = start + size
        # Invalid while it is written, so that no reader sees the old entry here.
        checksum = zlib.crc32(data, (start + 1) & 0xFFFFFFFF)
        layout.HEAP_ENTRY.pack_into(buffer, offset, 0, len(sizes), checksum)
        begin = offset + layout.HEAP_ENTRY.size
        buffer[begin : begin + len(data)] = data
        buffer[offset : offset + 8] = (start + 1).to_bytes(8, "little")
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        place = start // 8 + 1
        self._sizes[sizes] = place
        return place
