"""Record replays of CUDA graphs: one record for all calls of a graph on one communicator.

The running hash is a polynomial (see :mod:`ncclscope.model.signature`). So all calls of a graph
update it in one step, ``hash * BASE ** count + digest``. The result is the same as if they had
been recorded one by one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from itertools import accumulate
from mmap import mmap
from typing import Protocol

from ncclscope.model.signature import BASE, MASK, extend, replayed
from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.graph_book import GraphCall

_RECORD = struct.Struct("<QQQQQ48sQ")
"""A record; ``numel``, the number of the replay, is separate from the repeating fields."""
_pack_replay = _RECORD.pack_into
_powers = [1]
"""Those of BASE, as far as they have been needed."""
_time_ns = time.time_ns


class Part:
    """The collectives of one graph on one communicator.

    Attributes:
        channel: The communicator.
        packed: The data for recording a replay: channel; number of calls; ``BASE`` to that
            power; their running hash from zero; and the repeating bytes of the record, which are
            the last call's packed parameters without ``numel``, graph number and flags.

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
        moment = layout.MOMENT.pack(number & 0xFFFFFFFF, 0, layout.FLAG_REPLAYED, 0)
        digest = self.hashes[-1]
        self.channel = channel
        self.packed = channel, len(calls), power, digest, bytes(fixed[8:]) + moment

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
    now = _time_ns()
    pack, buffer, base, capacity = _pack_replay, writer._buffer, writer._base, writer.capacity
    for part in parts:
        channel, count, power, digest, repeats = part.packed
        while True:
            before = channel.hash
            # As in RingWriter.post(): what follows may let in signal handlers.
            running = (before * power + digest) & MASK
            if channel.hash is before:
                # From here until the record is stored, no call and no jump.
                position = writer.position
                begin = position + 1
                made = channel.seq
                seq = made + count
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
                    begin,
                )
                # ---
                break
        if first < 0:
            first = position
        if made >> 10 != seq >> 10:
            for place in range((made | 1023) + 1, seq + 1, 1024):
                writer._mark(channel.index, position, place, part.after(before, place - made))
        if not begin & writer._table_mask:
            writer._write_table()
    return first
