"""Record replays of CUDA graphs: one record for all calls of a graph on one communicator.

The running hash is a polynomial (see :mod:`ncclscope.model.signature`). So all calls of a graph
update it in one step, ``hash * BASE ** count + digest``. The result is the same as if they had
been recorded one by one.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from itertools import accumulate
from mmap import mmap
from typing import Protocol

from ncclscope.clock import now_ns
from ncclscope.model.signature import BASE, MASK, extend, replayed
from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.graph_book import GraphCall

_RECORD = struct.Struct("<QQQQQ48sII")
"""A record; ``numel``, the number of the replay, is separate from the repeating fields."""
_REPEATS = struct.Struct("<6Q")
_LOW = 0xFFFFFFFF
_pack_count = layout.COUNT.pack_into
_pack_replay = _RECORD.pack_into
_F0, _F1, _F2, _F3, _F4 = layout.FACTORS[:5]
_F11 = layout.FACTORS[11]
_powers = [1]
"""Those of BASE, as far as they have been needed."""


class Part:
    """The collectives of one graph on one communicator.

    Attributes:
        channel: The communicator.
        packed: The data for recording a replay: channel; number of calls; ``BASE`` to that
            power; their running hash from zero; and the repeating bytes of the record, which are
            the last call's packed parameters without ``numel``, graph number and flags; and
            what these bytes add to the record's check.

    Args:
        channel: The communicator.
        calls: Its collectives in the graph, in their order; at least one.
        number: Number of the graph.
    """

    __slots__ = ("channel", "hashes", "packed")

    def __init__(self, channel: Channel, calls: Sequence[GraphCall], number: int) -> None:
        signatures = (replayed(call.signature) for call in calls)
        self.hashes = list(accumulate(signatures, extend, initial=0))
        power = powers(len(calls))[-1]
        fixed = bytearray(calls[-1].fixed)
        fixed[layout.FIXED_FLAGS] |= layout.FIXED_REPLAY
        if calls[-1].sizes is not None:
            fixed[layout.FIXED_SIZES] = bytes(4)  # they are in the graphs section
        head = bytes(fixed[8:])
        moment = layout.MOMENT.pack(number & _LOW, 0, layout.FLAG_REPLAYED, layout.STATES[0])
        checked = head + layout.MOMENT.pack(number & _LOW, 0, layout.FLAG_REPLAYED, 0)
        share = sum(map(operator.mul, _REPEATS.unpack(checked), layout.FACTORS[5:11]))
        digest = self.hashes[-1]
        self.channel = channel
        self.packed = channel, len(calls), power, digest, head + moment, share

    def after(self, running: int, count: int) -> int:
        """Return the running hash after the first calls of a replay.

        Args:
            running: Running hash before the replay.
            count: Number of its calls to include.
        """
        return (running * _powers[count] + self.hashes[count]) & MASK


def powers(count: int) -> tuple[int, ...]:
    """Return the powers of BASE from 0 to `count`, modulo 2 ** 64."""
    while len(_powers) <= count:
        _powers.append(_powers[-1] * BASE & MASK)
    return tuple(_powers[: count + 1])


class Ring(Protocol):
    """The part of the writer that recording a replay, or withdrawing a call, needs."""

    position: int
    capacity: int
    _buffer: mmap | bytearray
    _base: int
    _table_mask: int
    _tabled: int

    def _mark(self, index: int, position: int, seq: int, running: int) -> None: ...

    def _write_table(self) -> None: ...


def parts_of(calls: Sequence[GraphCall], number: int) -> list[Part]:
    """Return the collectives of a graph by communicator, in the order of their first calls."""
    mine: dict[Channel, list[GraphCall]] = {}
    for call in calls:
        if call.signature:
            mine.setdefault(call.channel, []).append(call)
    return [Part(channel, own, number) for channel, own in mine.items()]


def post_replay(writer: Ring, parts: Sequence[Part], number: int) -> int:
    """Record that a graph is replayed.

    Args:
        writer: The ring.
        parts: The graph's collectives by communicator.
        number: Number of replays of the graph, including this one.

    Returns:
        The position of the first record; -1 if the graph has no collectives.
    """
    first = -1
    now = now_ns()
    pack, buffer, base, capacity = _pack_replay, writer._buffer, writer._base, writer.capacity
    for part in parts:
        channel, count, power, digest, repeats, share = part.packed
        while True:
            before, position, made = channel.hash, writer.position, channel.seq
            begin, seq = position + 1, made + count
            # As in RingWriter.post(): what follows may let in signal handlers.
            running = (before * power + digest) & MASK
            words = begin * _F0 + now * _F1 + running * _F2 + seq * _F3 + number * _F4
            check = (words + share + (begin & _LOW) * _F11 & MASK) >> 32
            if channel.hash is before and writer.position == position:
                # From here until the record is stored, no call and no jump.
                writer.position = begin
                channel.seq = seq
                channel.hash = running
                pack(
                    buffer,
                    base + position % capacity * 96,
                    begin,
                    now,
                    running,
                    seq,
                    number,
                    repeats,
                    begin & _LOW,
                    check,
                )
                # ---
                _pack_count(buffer, layout.HEADER_COUNT, begin, begin ^ MASK)
                break
        if first < 0:
            first = position
        if made >> 10 != seq >> 10:
            for place in range((made | 1023) + 1, seq + 1, 1024):
                writer._mark(channel.index, position, place, part.after(before, place - made))
        if not begin & writer._table_mask:
            writer._write_table()
    return first
