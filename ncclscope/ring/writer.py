"""Writes one ring; see :mod:`ncclscope.ring.layout` for the bytes.

Stores into a shared map survive SIGKILL, abort and the OOM killer without any flush: the
pages belong to the kernel. Two things make that safe for the job. The space is reserved
when the file is made, since a store into a full file system is a SIGBUS; and the writer
takes only a small part of what a file system has left, since the job may need the rest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclscope.errors import RingError
from ncclscope.ring import layout
from ncclscope.signature import BASE, MASK

__all__ = ["Channel", "RingWriter"]

_pack_record = layout.RECORD.pack_into
_pack_moment = layout.MOMENT.pack
_time_ns = time.time_ns
_PLAIN = bytes(layout.MOMENT.size)
"""The moment of a call outside groups and graphs that is yet to start."""

SHARE = 8
"""A ring is made only where it takes at most one part in so many of the free space."""


class Channel:
    """The writing end of one communicator in one ring.

    Attributes:
        index: Number of the communicator in the file.
        seq: Collectives recorded so far.
        hash: Running hash after them.
        p2p: Point-to-point calls recorded so far.
    """

    __slots__ = ("hash", "index", "p2p", "seq")

    def __init__(self, index: int) -> None:
        self.index = index
        self.seq = 0
        self.hash = 0
        self.p2p = 0


class RingWriter:
    """One process's ring.

    Methods that record take no lock. CPython hands over the GIL, and runs signal handlers,
    only after calls and at jumps, so the few assignments that give a call its position, seq
    and running hash, and the one call that stores the record, cannot be torn apart: a number
    that was given has its record, whenever the process dies. (A free-threaded interpreter
    makes no such promise; there a lock is put around them.)

    Args:
        directory: Where the file goes; made with mode 0700 when absent.
        capacity: Records kept.
        about: Self-description, anything that JSON can hold.

    Raises:
        RingError: No directory could take the ring.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        capacity: int = layout.DEFAULT_CAPACITY,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if capacity < layout.MIN_CAPACITY:
            raise RingError(
                f"a ring of {capacity} records is too small",
                f"give at least {layout.MIN_CAPACITY}",
            )
        self.geometry = layout.Geometry.for_capacity(capacity)
        self.path, descriptor = _create(Path(directory), self.geometry.total)
        try:
            self._buffer: mmap.mmap | bytearray = mmap.mmap(descriptor, self.geometry.total)
        finally:
            os.close(descriptor)
        self.capacity = capacity
        self.position = 0
        self._base = self.geometry.records
        self._table_mask = layout.table_every(capacity) - 1
        self._channels: list[Channel] = []
        self._post_lock = threading.RLock()
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            self._guard_posts()
        # For what is written once in a while; re-entered only by a signal handler.
        self._lock = threading.RLock()
        self._interning = False
        self._about: dict[str, Any] = dict(about or {})
        self._about_generation = 0
        self._strings_used = 0
        self._numbers: dict[int, dict[str, int]] = {
            kind: {} for kind in range(1, layout.KIND_COMM_UPDATE + 1)
        }
        self._sizes: dict[tuple[int, ...], int] = {}
        self._heap_used = 0
        self._tables = 0
        self._marks = 0
        self.describe()
        self.beat()
        # The magic comes last: a reader never sees a header that is not whole.
        layout.HEADER.pack_into(
            self._buffer,
            0,
            b"",
            layout.VERSION,
            layout.RECORD.size,
            capacity,
            self.geometry.about_size,
            self.geometry.strings_size,
            self.geometry.heap_size,
            self.geometry.marks,
        )
        self._buffer[: len(layout.MAGIC)] = layout.MAGIC

    # --- the calls -------------------------------------------------------------------------

    def post(
        self,
        channel: Channel,
        fixed: bytes,
        signature: int,
        state: int = 0,
        flags: int = 0,
        group: int = 0,
        graph: int = 0,
    ) -> int:
        """Records one collective.

        Args:
            channel: The communicator it was posted on.
            fixed: What :meth:`fixed` made of its parameters.
            signature: What :func:`ncclscope.signature.sign` made of them.
            state: A :class:`~ncclscope.model.State`.
            flags: FLAG_* of the layout.
            group: Number of the NCCL group, 0 outside.
            graph: CUDA graph, 0 for none.

        Returns:
            The position, by which :meth:`advance` finds the record again.
        """
        moment = _PLAIN
        if state or flags or group or graph:
            moment = _pack_moment(group, graph, flags, state, 0)
        now = _time_ns()
        # From here until the record is stored, no call and no jump: see the class's docstring.
        position = self.position
        begin = position + 1
        seq = channel.seq + 1
        running = (channel.hash * BASE + signature) & MASK
        self.position = begin
        channel.seq = seq
        channel.hash = running
        _pack_record(
            self._buffer,
            self._base + position % self.capacity * 96,
            begin,
            now,
            running,
            seq,
            fixed,
            moment,
            begin & 0xFFFFFFFF,
        )
        # ---
        if not seq & 1023:
            self._mark(channel.index, position, seq, running)
        if not begin & self._table_mask:
            self._write_table()
        return position

    def post_p2p(
        self,
        channel: Channel,
        fixed: bytes,
        state: int = 0,
        flags: int = 0,
        group: int = 0,
        graph: int = 0,
    ) -> int:
        """Records a send or a receive, which is no part of the common sequence."""
        moment = _PLAIN
        if state or flags or group or graph:
            moment = _pack_moment(group, graph, flags, state, 0)
        now = _time_ns()
        # As in post().
        position = self.position
        begin = position + 1
        seq = channel.p2p + 1
        running = channel.hash
        self.position = begin
        channel.p2p = seq
        _pack_record(
            self._buffer,
            self._base + position % self.capacity * 96,
            begin,
            now,
            running,
            seq,
            fixed,
            moment,
            begin & 0xFFFFFFFF,
        )
        # ---
        if not begin & self._table_mask:
            self._write_table()
        return position

    def post_step(self, number: int, tokens: int | None, dummy: bool) -> int:
        """Records that the calls from here on belong to another step of the engine."""
        seq = number & MASK
        fixed = layout.FIXED.pack(
            0 if tokens is None else (tokens + 1) & MASK,
            *(0, 0, 0, 0, 0, 0, 0, 0, layout.NO_SHAPE),
            layout.FIXED_STEP | (layout.FIXED_DUMMY if dummy else 0),
            *(-1, 0, 0, 0),
        )
        now = _time_ns()
        # As in post().
        position = self.position
        begin = position + 1
        self.position = begin
        _pack_record(
            self._buffer,
            self._base + position % self.capacity * 96,
            begin,
            now,
            0,
            seq,
            fixed,
            _PLAIN,
            begin & 0xFFFFFFFF,
        )
        # ---
        if not begin & self._table_mask:
            self._write_table()
        return position

    def advance(self, position: int, state: int) -> None:
        """Sets the state of a record, if it has not been overwritten."""
        if self.position - position <= self.capacity:
            self._buffer[self._base + position % self.capacity * 96 + layout.STATE_OFFSET] = state

    def _guard_posts(self) -> None:
        """Puts a lock around what records, for an interpreter without a GIL."""
        for name in ("post", "post_p2p", "post_step"):
            setattr(self, name, self._guarded(getattr(self, name)))

    def _guarded(self, method: Callable[..., int]) -> Callable[..., int]:
        def guarded(*arguments: Any, **named: Any) -> int:
            with self._post_lock:
                return method(*arguments, **named)

        return guarded

    # --- what the calls refer to -----------------------------------------------------------

    def channel(self, about: Mapping[str, Any]) -> Channel:
        """Returns a new channel for a communicator with this description.

        Raises:
            RingError: There is no room for another one.
        """
        with self._lock:
            if len(self._channels) >= layout.MAX_COMMS:
                raise RingError(f"a ring holds {layout.MAX_COMMS} communicators at most")
            number = self._intern(layout.KIND_COMM, json.dumps(about))
            if number != len(self._channels) + 1:
                raise RingError("the ring has no room for another communicator")
            channel = Channel(number)
            self._channels.append(channel)
            self._write_table()
            return channel

    def update_channel(self, channel: Channel, changed: Mapping[str, Any]) -> None:
        """Adds to a communicator's description, such as the label that became known later."""
        self._intern(layout.KIND_COMM_UPDATE, json.dumps({"comm": channel.index, **changed}))

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
        """Packs the part of a record that repeats from call to call, interning its text.

        Callers keep the result for the next call with the same parameters; of a call with
        ``sizes`` not for long, since the heap is a circle (see :meth:`holds_sizes`).
        """
        number = self._number
        dims = [0, 0, 0, 0]
        ndim = layout.NO_SHAPE
        if shape is not None:
            ndim = min(len(shape), 4)
            for place, size in enumerate(shape):
                dims[min(place, 3)] = size if place <= 3 else dims[3] * size
        return layout.FIXED.pack(
            numel,
            *(min(size, 0xFFFFFFFF) for size in dims),
            channel.index,
            min(number(layout.KIND_OP, op), 0xFFFF),
            min(number(layout.KIND_DTYPE, dtype), 0xFF),
            min(number(layout.KIND_REDOP, redop), 0xFF),
            ndim,
            layout.FIXED_P2P if p2p else 0,
            -1 if root is None else root,
            0 if sizes is None else self._intern_sizes(tuple(sizes)),
            number(layout.KIND_SITE, site),
            0
            if out_shape is None
            else number(layout.KIND_SHAPE, ",".join(map(str, out_shape)) or "()"),
        )

    def holds_sizes(self, fixed: bytes) -> bool:
        """Whether the sizes list that packed parameters refer to is safe for a while yet."""
        place = int.from_bytes(fixed[36:40], "little")
        return not place or self._heap_used - (place - 1) * 8 < self.geometry.heap_size // 2

    def _number(self, kind: int, text: str | None) -> int:
        return 0 if text is None else self._intern(kind, text)

    def _intern(self, kind: int, text: str) -> int:
        """Returns the number of a text within its kind; 0 when there is no room for it."""
        known = self._numbers[kind].get(text)
        if known is not None:
            return known
        with self._lock:
            if self._interning:
                return 0
            self._interning = True
            try:
                return self._append_text(kind, text)
            finally:
                self._interning = False

    def _append_text(self, kind: int, text: str) -> int:
        numbers = self._numbers[kind]
        if text in numbers:  # another thread was faster
            return numbers[text]
        data = text.encode("utf-8", "replace")
        size = -(-(layout.TEXT_ENTRY.size + len(data)) // 8) * 8
        if self._strings_used + size > self.geometry.strings_size:
            return 0
        offset = self.geometry.strings + self._strings_used
        layout.TEXT_ENTRY.pack_into(self._buffer, offset, len(data), kind, 0, 0)
        start = offset + layout.TEXT_ENTRY.size
        self._buffer[start : start + len(data)] = data
        self._strings_used += size
        numbers[text] = number = len(numbers) + 1
        self._put_u64(layout.HEADER_STRINGS_USED, self._strings_used)
        return number

    def _intern_sizes(self, sizes: tuple[int, ...]) -> int:
        known = self._sizes.get(sizes)
        if known is not None and self._heap_used - known < self.geometry.heap_size // 2:
            return known // 8 + 1
        with self._lock:
            if self._interning:
                return 0
            self._interning = True
            try:
                return self._append_sizes(sizes)
            finally:
                self._interning = False

    def _append_sizes(self, sizes: tuple[int, ...]) -> int:
        heap_size = self.geometry.heap_size
        size = layout.HEAP_ENTRY.size + 8 * len(sizes)
        if size > heap_size // 4:
            return 0
        place = self._heap_used
        if place % heap_size + size > heap_size:  # entries do not run over the end
            place += heap_size - place % heap_size
        offset = self.geometry.heap + place % heap_size
        self._heap_used = place + size
        if len(self._sizes) >= 4096:
            self._sizes.clear()
        self._sizes[sizes] = place
        # Unmarked while it is written: the old entry here must not show through.
        layout.HEAP_ENTRY.pack_into(self._buffer, offset, 0, len(sizes), 0)
        start = offset + layout.HEAP_ENTRY.size
        self._buffer[start : start + 8 * len(sizes)] = b"".join(
            value.to_bytes(8, "little", signed=True) for value in sizes
        )
        self._put_u64(offset, place + 1)
        return place // 8 + 1

    # --- what the process says of itself -----------------------------------------------------

    def describe(self, **fields: Any) -> None:
        """Adds to the self-description; a text too long for its place is left out."""
        with self._lock:
            self._write_about(fields)

    def _write_about(self, fields: Mapping[str, Any]) -> None:
        self._about.update(fields)
        self._about_generation += 1
        data = json.dumps(self._about, default=str).encode()
        room = self.geometry.about_size - layout.ABOUT.size
        if len(data) > room:
            kept = {key: value for key, value in self._about.items() if len(str(value)) < 512}
            data = json.dumps(kept, default=str).encode()[:room]
        offset = self.geometry.about + self._about_generation % 2 * self.geometry.about_size
        self._put_u64(offset, 0)
        start = offset + layout.ABOUT.size
        self._buffer[start : start + len(data)] = data
        layout.ABOUT.pack_into(
            self._buffer, offset, self._about_generation, len(data), zlib.crc32(data), 0
        )

    def beat(self) -> None:
        """Leaves a sign of life."""
        self._put_u64(layout.HEADER_HEARTBEAT, _time_ns())

    def finish(self) -> None:
        """Notes that the process ended in order. The map stays: other threads may still write."""
        self._write_table()
        self.beat()
        self._put_u64(layout.HEADER_EXITED, _time_ns())

    def detach(self) -> None:
        """Lets go of the file without a trace in it; what is recorded now goes nowhere.

        For the child after a fork, whose map is its parent's ring.
        """
        self._buffer = bytearray(layout.PAGE)
        self._base = 0
        self.capacity = 1
        # A lock may have been held by a thread that does not exist here.
        self._lock = threading.RLock()
        self._post_lock = threading.RLock()
        for name in ("_mark", "_write_table", "_append_text", "_append_sizes", "_write_about"):
            setattr(self, name, _nothing)

    # --- circles beside the records ----------------------------------------------------------

    def _mark(self, index: int, position: int, seq: int, running: int) -> None:
        place = self._marks % self.geometry.marks
        self._marks += 1
        offset = self.geometry.mark_area + place * layout.MARK.size
        begin = position + 1
        layout.MARK.pack_into(self._buffer, offset, begin, seq, running, index, begin & 0xFFFFFFFF)

    def _write_table(self) -> None:
        self._tables += 1
        half = self._tables % 2 * layout.MAX_COMMS
        size = layout.TABLE_ENTRY.size
        self.beat()
        for channel in list(self._channels):
            begin = self.position + 1
            seq, running, p2p = channel.seq, channel.hash, channel.p2p
            offset = self.geometry.table + (half + channel.index - 1) * size
            layout.TABLE_ENTRY.pack_into(
                self._buffer, offset, begin, seq, running, p2p, begin & 0xFFFFFFFF
            )

    def _put_u64(self, offset: int, value: int) -> None:
        self._buffer[offset : offset + 8] = value.to_bytes(8, "little")


def _nothing(*_arguments: object) -> int:
    return 0


def _create(directory: Path, size: int) -> tuple[Path, int]:
    """Makes a file with its space reserved, in the directory or else on disk.

    Returns:
        The path and an open descriptor.
    """
    name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}{layout.SUFFIX}"
    try:
        return _create_in(directory, name, size)
    except OSError as error:
        first = error
    fallback = Path(tempfile.gettempdir(), f"ncclscope-{os.getuid()}", directory.name)
    try:
        path, descriptor = _create_in(fallback, name, size)
    except OSError as second:
        raise RingError(
            f"no ring can be made in {directory} ({_reason(first)}) "
            f"nor in {fallback} ({_reason(second)})",
            f"set NCCLSCOPE_DIR to a directory with {size * SHARE >> 20} MB free",
        ) from second
    with contextlib.suppress(OSError):
        # A directory that is full can often still take one short file.
        directory.joinpath(name + layout.MOVED_SUFFIX).write_text(f"{path}\n")
    return path, descriptor


def _create_in(directory: Path, name: str, size: int) -> tuple[Path, int]:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        system = os.fstatvfs(folder)
        if system.f_bavail * system.f_frsize < size * SHARE:
            raise OSError(errno.ENOSPC, "too little space left")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            os.unlink(name, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return directory / name, descriptor


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is a symbolic link or no directory"
    return (error.strerror or str(error)).lower()
