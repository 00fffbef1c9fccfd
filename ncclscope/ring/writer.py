"""Writes one ring; see :mod:`ncclscope.ring.layout` for the bytes.

Stores into a shared map survive SIGKILL, abort and the OOM killer without any flush: the
pages belong to the kernel. That the space is there is seen to in :mod:`ncclscope.ring.place`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import operator
import os
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclscope.clock import CLOCK, now_ns
from ncclscope.errors import RingError
from ncclscope.model.signature import BASE, MASK, captured, replayed
from ncclscope.native.threads import own
from ncclscope.ring import layout, unsent
from ncclscope.ring.activity import Activities
from ncclscope.ring.channel import Channel
from ncclscope.ring.comm_texts import CommTexts
from ncclscope.ring.graph_book import GraphBook, GraphCall
from ncclscope.ring.intern import Interner
from ncclscope.ring.place import RingPlace, leave_pointer, make_file
from ncclscope.ring.replays import parts_of, post_replay
from ncclscope.ring.room import Room, first_parts

if TYPE_CHECKING:
    from ncclscope.ring.slots import Slots

__all__ = ["Channel", "RingWriter"]

_pack_record = layout.RECORD.pack_into
_pack_moment = layout.MOMENT.pack
_pack_count = layout.COUNT.pack_into
_FIXED_WORDS = struct.Struct("<6Q")
_F0, _F1, _F2, _F3 = layout.FACTORS[:4]
_FIXED_FACTORS = layout.FACTORS[4:10]
_F10, _F11 = layout.FACTORS[10:]
_COUNT = layout.HEADER_COUNT
_SHARES_KEPT = 4096
_STATES = dict(enumerate(layout.STATES))
_STEPS = tuple(
    layout.FIXED.pack(*[0] * 9, layout.NO_SHAPE, flags, -1, 0, 0, 0)[8:]
    for flags in (layout.FIXED_STEP, layout.FIXED_STEP | layout.FIXED_DUMMY)
)
"""What repeats in the records of steps, behind ``numel``: of passes, and of dummy batches."""
_MOST = layout.MOST
_PLAIN = layout.MOMENT.pack(0, 0, 0, layout.STATES[0])
"""The moment of a step."""
_LOW = 0xFFFFFFFF


class RingWriter:
    """One process's ring.

    Methods that record take no lock. CPython hands over the GIL, and runs signal handlers,
    only after calls, at jumps and in the arithmetic of long numbers, so the few assignments
    that give a call its position, seq and running hash, and the one call that stores the
    record, cannot be torn apart: a number that was given has its record, whenever the process
    dies. (A free-threaded interpreter makes no such promise; there a lock is put around them.)

    Args:
        directory: Directory of the file; created with mode 0700 if absent.
        capacity: Number of records kept.
        about: Process description; any JSON values.
        device: Whether GPUs write their progress into it.

    Attributes:
        activities: The process's activities besides its calls.
        graphs: The calls of CUDA graphs.
        capture: Called with communicator, packed parameters, signature and NCCL group of a
            captured call; returns whether it has added the call to a graph.
        slots: The GPUs' progress counters; None without `device`.
        path: Path of the file.
        moved: Why it is not in the requested directory; empty if it is.
        pointed: Whether a pointer file in that directory names the path of a moved ring.

    Raises:
        RingError: No directory had room for the ring.
    """

    _activity: Callable[[int, int], Any] | None = None
    """As `core` of :class:`Activities`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        capacity: int = layout.DEFAULT_CAPACITY,
        about: Mapping[str, Any] | None = None,
        device: bool = False,
    ) -> None:
        if capacity < layout.MIN_CAPACITY:
            raise RingError(
                f"a ring of {capacity} records is too small",
                f"give at least {layout.MIN_CAPACITY}",
            )
        self.geometry = layout.Geometry.for_capacity(capacity, device=device)
        place = make_file(Path(directory), self.geometry.total, first_parts(self.geometry))
        self.path = place.path
        self.capacity = capacity
        try:
            buffer = mmap.mmap(place.descriptor, self.geometry.total)
            self._room = Room(buffer, self.geometry)
            layout.prepare_words(buffer)
            self._interner = self._open(place, buffer, device)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(place.path)
            raise
        finally:
            os.close(place.descriptor)
        self.moved = place.reason
        self.pointed = bool(place.reason) and leave_pointer(Path(directory), place.path)
        self._buffer: mmap.mmap | bytearray = buffer
        self.fixed = self._interner.fixed
        """:meth:`Interner.fixed`, which packs the repeating part of a record."""
        self.holds_sizes = self._interner.holds_sizes
        """:meth:`Interner.holds_sizes`, which says whether packed parameters can be reused."""
        self.sizes_of = self._interner.sizes_of
        """:meth:`Interner.sizes_of`, which reads a sizes list back."""
        self.activities = Activities(buffer, self._interner, self._activity)
        self.graphs = GraphBook(buffer, self.geometry, self._room)
        self.slots = _slots(buffer, self.geometry) if device else None
        self.capture: Callable[[Channel, bytes, int, int], int] = _nothing
        self._detached = False
        # For what is written once in a while; re-entered only by a signal handler.
        self._lock = threading.RLock()
        self._about: dict[str, Any] = dict(about or {})
        self._about_generation = 0
        self.describe()
        self.store_heartbeat()
        self._publish()

    def _open(self, place: RingPlace, buffer: mmap.mmap, device: bool) -> Interner:
        """Prepare to write; return what writes texts."""
        self.position = 0
        self._base = self.geometry.records
        self._table_mask = layout.table_every(self._room.records) - 1
        self._shares: dict[bytes, int] = {}
        self._channels: dict[int, Channel] = {}
        self._tables = 0
        self._tabled = 0
        self._marks = 0
        self._post_lock = threading.RLock()
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            self._guard_posts()
        interner = Interner(buffer, self.geometry, self._room)
        self._comm_texts = CommTexts(buffer, self.geometry, interner)
        return interner

    def _publish(self) -> None:
        # The magic comes last: a reader never sees a header that is not whole.
        geometry = self.geometry
        header = layout.HEADER.pack(
            layout.MAGIC,
            layout.VERSION,
            layout.RECORD.size,
            self.capacity,
            geometry.about_size,
            geometry.strings_size,
            geometry.heap_size,
            geometry.marks,
            geometry.comms,
            geometry.graphs_size,
            geometry.device_size,
            CLOCK & MASK,
        )
        magic = len(layout.MAGIC)
        data = header + zlib.crc32(header).to_bytes(4, "little")
        for start in (layout.MIRROR, 0):
            self._buffer[start + magic : start + len(data)] = data[magic:]
            self._buffer[start : start + magic] = layout.MAGIC

    # --- the calls -------------------------------------------------------------------------

    @property
    def refused(self) -> int:
        """Number of texts not written because another write was interrupted; see `Interner`."""
        return self._interner.refused

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
        """Record one collective.

        Args:
            channel: The communicator on which it is enqueued.
            fixed: Its parameters as packed by :meth:`fixed`.
            signature: Their signature from :func:`ncclscope.model.signature.sign`.
            state: A :class:`~ncclscope.model.State`.
            flags: FLAG_* of the layout.
            group: Number of the NCCL group, 0 outside.
            graph: CUDA graph, 0 for none.

        Returns:
            The position, by which :meth:`advance` finds the record again; -1 for a call that
            became a part of a graph.
        """
        signed, thread = signature, own.number
        moment, of_moment = _PLAIN_OF[thread]
        if state or flags or group or graph:
            flags |= thread << layout.THREAD_SHIFT
            moment, of_moment = _moment(graph, group, flags, state)
            if flags & layout.FLAG_CAPTURED:
                if self.capture(channel, fixed, signature, group):
                    return -1
                signed = captured(signature)
            elif flags & layout.FLAG_REPLAYED:
                signed = replayed(signature)
        now = now_ns()
        share = self._shares.get(fixed) or self._share(fixed)
        before, position = channel.hash, self.position
        begin, seq = position + 1, channel.seq + 1
        # Multiplying long integers may run signal handlers and the garbage collector.
        running = (before * BASE + signed) & MASK
        of_begin = begin * _F0 + (begin & _LOW) * _F11
        total = of_begin + now * _F1 + running * _F2 + seq * _F3 + share + of_moment
        check = (total & MASK) >> 32
        if channel.hash is before and self.position == position:
            # No call and no jump from here until the record is stored; see the class.
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
                begin & _LOW,
                check,
            )
            # ---
            _pack_count(self._buffer, _COUNT, begin, begin ^ MASK)
            if not seq & 1023:
                self._mark(channel.index, position, seq, running)
            if not begin & self._table_mask:
                self._write_table()
            return position
        return self.post(channel, fixed, signature, state, flags, group, graph)

    def post_p2p(
        self,
        channel: Channel,
        fixed: bytes,
        state: int = 0,
        flags: int = 0,
        group: int = 0,
        graph: int = 0,
    ) -> int:
        """Record a send or receive, outside the common sequence; arguments as for :meth:`post`."""
        thread = own.number
        moment, of_moment = _PLAIN_OF[thread]
        if state or flags or group or graph:
            flags |= thread << layout.THREAD_SHIFT
            moment, of_moment = _moment(graph, group, flags, state)
            if flags & layout.FLAG_CAPTURED and self.capture(channel, fixed, 0, group):
                return -1
        now = now_ns()
        share = self._shares.get(fixed) or self._share(fixed)
        while True:
            seq, running, position = channel.p2p + 1, channel.hash, self.position
            begin = position + 1
            of_begin = begin * _F0 + (begin & _LOW) * _F11
            total = of_begin + now * _F1 + running * _F2 + seq * _F3 + share + of_moment
            check = (total & MASK) >> 32
            if self.position == position:
                # As in post().
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
                    begin & _LOW,
                    check,
                )
                # ---
                _pack_count(self._buffer, _COUNT, begin, begin ^ MASK)
                break
        if not begin & self._table_mask:
            self._write_table()
        return position

    def post_step(self, number: int, tokens: int | None, dummy: bool) -> int:
        """Record that a step of the engine begins.

        Args:
            number: Number of the step; 0 or more.
            tokens: Number of scheduled tokens; None if it is unknown.
            dummy: Whether the step only keeps up with those of other ranks.
        """
        seq = min(max(number, 0), _MOST)
        held = 0 if tokens is None else min(max(tokens, 0), _MOST) + 1
        fixed = held.to_bytes(8, "little") + _STEPS[dummy]
        now = now_ns()
        share = _share_of(fixed)
        while True:
            position = self.position
            begin = position + 1
            total = begin * _F0 + (begin & _LOW) * _F11 + now * _F1 + seq * _F3 + share
            check = (total & MASK) >> 32
            if self.position == position:
                # As in post().
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
                    begin & _LOW,
                    check,
                )
                # ---
                _pack_count(self._buffer, _COUNT, begin, begin ^ MASK)
                break
        if not begin & self._table_mask:
            self._write_table()
        return position

    def parts_of(self, calls: Sequence[GraphCall], number: int) -> list[Any]:
        """Return the collectives of a graph by communicator, for :meth:`post_replay`."""
        return list(parts_of(calls, number))

    def post_replay(self, parts: list[Any], number: int) -> int:
        """Record that a graph is replayed: :func:`ncclscope.ring.replays.post_replay`."""
        return post_replay(self, parts, number)

    def advance(self, position: int, state: int) -> None:
        """Set the state of a record, if it has not been overwritten."""
        spelled = _STATES.get(state)
        if spelled and position >= 0 and 0 < self.position - position <= self.capacity:
            place = self._base + position % self.capacity * 96 + layout.STATE_OFFSET
            self._buffer[place] = spelled

    def _share(self, fixed: bytes) -> int:
        """Return what packed parameters add to a record's check, and keep it."""
        if len(self._shares) >= _SHARES_KEPT:
            self._shares.clear()
        share = self._shares[fixed] = _share_of(fixed)
        return share

    withdraw = unsent.withdraw

    def _guard_posts(self) -> None:
        """Put a lock around the recording methods, for an interpreter without a GIL."""
        for name in ("post", "post_p2p", "post_step", "post_replay"):
            setattr(self, name, self._guarded(getattr(self, name)))

    def _guarded(self, method: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(method)
        def guarded(*arguments: Any, **named: Any) -> int:
            with self._post_lock:
                return method(*arguments, **named)

        return guarded

    # --- communicators ---------------------------------------------------------------------

    def channel(self, about: Mapping[str, Any]) -> Channel:
        """Return a new channel for a communicator with this description.

        Without room for another communicator, its number is 0: calls on it are recorded, but not on
        which communicator they were made.
        """
        with self._lock:
            return self._open_channel(json.dumps(about), about)

    def update_channel(self, channel: Channel, changed: Mapping[str, Any]) -> None:
        """Add to a communicator's description, such as the label that became known later."""
        if channel.index:
            self._update(channel, json.dumps({"comm": channel.index, **changed}))

    def close_channel(self, channel: Channel) -> None:
        """Let a communicator's number be used again, since the communicator was destroyed."""
        with self._lock:
            if not self._detached:
                self._comm_texts.close(channel.index)

    def reopen_channel(self, channel: Channel) -> None:
        """Take back that a communicator was destroyed: it is used again."""
        with self._lock:
            self._comm_texts.reopen(channel.index)

    def _update(self, channel: Channel, text: str) -> None:
        with self._lock:
            if not self._detached:
                self._comm_texts.update(channel.index, text)

    def _open_channel(self, text: str, about: Mapping[str, Any]) -> Channel:
        """Return the channel of a communicator with this text."""
        if self._detached:
            return Channel(1)
        known = len(self._channels)
        if known < self.geometry.comms and not self._room.has_comm(known + 1):
            number = self._comm_texts.again(text, self.position)
        else:
            number = self._comm_texts.open(text, self.position)
        channel = Channel(number)
        if not number:
            return channel
        if number in self._channels:
            self._channels[number].index = 0
            self._write_entry((self._tables + 1) % 2, channel)
        self._channels[number] = channel
        self._write_entry(self._tables % 2, channel)
        return channel

    # --- process description -----------------------------------------------------------------

    def describe(self, **fields: Any) -> None:
        """Add to the process description, dropping the longest fields if it gets too long."""
        with self._lock:
            self._write_about(fields)

    def _write_about(self, fields: Mapping[str, Any]) -> None:
        self._about.update(fields)
        kept = dict(self._about)
        data = json.dumps(kept, default=str).encode()
        while len(data) > self.geometry.about_size - layout.ABOUT.size:
            del kept[max(kept, key=lambda name: len(json.dumps(kept[name], default=str)))]
            data = json.dumps(kept, default=str).encode()
        self._store_about(data)

    def _store_about(self, data: bytes) -> None:
        self._about_generation += 1
        generation = self._about_generation
        checksum = zlib.crc32(data, generation & 0xFFFFFFFF)
        for copy in (1, 0):  # one after the other, so that one is always whole
            offset = self.geometry.about + copy * self.geometry.about_size
            self._put_u64(offset, 0)
            start = offset + layout.ABOUT.size
            self._buffer[start : start + len(data)] = data
            layout.ABOUT.pack_into(self._buffer, offset, generation, len(data), checksum, 0)
        self._put_word(layout.HEADER_ABOUTS, generation)

    def store_heartbeat(self) -> None:
        """Store a heartbeat."""
        self._put_word(layout.HEADER_HEARTBEAT, now_ns())

    def finish(self) -> None:
        """Record a normal exit. The map stays: other threads may still write."""
        self._write_table()  # with a heartbeat
        self._put_word(layout.HEADER_EXITED, now_ns())

    def detach(self) -> None:
        """Stop writing to the file, without changing it; later records are discarded.

        For the child after a fork, whose map is its parent's ring.
        """
        self._detached = True
        self._buffer = bytearray(layout.PAGE)
        self._base = 0
        self.capacity = 1
        # A thread that does not exist in this process may have held a lock.
        self._lock = threading.RLock()
        self._post_lock = threading.RLock()
        self._interner.detach()
        self.activities.detach()
        self.graphs.detach()
        self.slots = None
        for name in ("_mark", "_write_table", "_write_about", "capture"):
            setattr(self, name, _nothing)

    # --- table and marks ---------------------------------------------------------------------

    def _mark(self, index: int, position: int, seq: int, running: int) -> None:
        if not index:
            return
        place = self._marks % self.geometry.marks
        self._marks += 1
        size = layout.MARK.size
        offset = self.geometry.mark_area + place * size
        entry = layout.MARK.pack(position + 1, seq, running, index, 0)
        self._buffer[offset : offset + size] = layout.sealed(entry)

    def _write_table(self) -> None:
        self._tables += 1
        self._tabled = self.position
        self.store_heartbeat()
        for channel in list(self._channels.values()):
            self._write_entry(self._tables % 2, channel)
        if self._room.records < self.capacity:
            self._add_records()

    def _write_entry(self, half: int, channel: Channel) -> None:
        size = layout.TABLE_ENTRY.size
        begin = self.position + 1
        seq, running, p2p = channel.seq, channel.hash, channel.p2p & _LOW
        offset = self.geometry.table + (half * self.geometry.comms + channel.index - 1) * size
        entry = layout.TABLE_ENTRY.pack(begin, seq, running, p2p, 0)
        self._buffer[offset : offset + size] = layout.sealed(entry)

    def _add_records(self) -> None:
        """Reserve more slots before the records reach the last one; without room, wrap there."""
        room = self._room
        while room.records < self.capacity and self.position + self._table_mask + 1 > (
            room.records - self._table_mask - 1
        ):
            if room.add_records():
                self._table_mask = layout.table_every(room.records) - 1
            else:
                self._put_word(layout.HEADER_WRAP, room.records)
                self.capacity = room.records

    def _put_word(self, offset: int, value: int) -> None:
        if not self._detached:
            layout.put_word(self._buffer, offset, value)  # type: ignore[arg-type]

    def _put_u64(self, offset: int, value: int) -> None:
        self._buffer[offset : offset + 8] = value.to_bytes(8, "little")


def _moment(graph: int, group: int, flags: int, state: int) -> tuple[bytes, int]:
    """Return the packed moment of a call, and what it adds to the record's check."""
    number = group and (group - 1) % 0xFFFF + 1
    if not 0 <= state < len(layout.STATES):
        raise ValueError("the state is 0 to 2")
    packed = _pack_moment(graph & _LOW, number, flags, layout.STATES[state])
    return packed, (graph & _LOW | number << 32 | flags << 48) * _F10


_PLAIN_OF = [_moment(0, 0, number << layout.THREAD_SHIFT, 0) for number in range(64)]
"""Of each thread, the moment of a call outside groups and graphs, and what it adds to the check."""


def _share_of(fixed: bytes) -> int:
    return sum(map(operator.mul, _FIXED_WORDS.unpack(fixed), _FIXED_FACTORS))


def _slots(buffer: mmap.mmap, geometry: layout.Geometry) -> Slots:
    from ncclscope.ring.slots import Slots  # imports ctypes, which few processes need

    return Slots(buffer, geometry)


def _nothing(*_arguments: object) -> int:
    return 0
