"""Records replays of CUDA graphs: one record for all calls of a graph on one communicator.

The running hash is a polynomial (see :mod:`ncclscope.signature`), so that all calls of a graph
enter it in one step, as ``hash * BASE ** count + digest``, and leave the same hash behind as if
they had been recorded one by one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.graph_book import GraphCall
from ncclscope.signature import BASE, MASK, extend, replayed

if TYPE_CHECKING:
    from ncclscope.ring.writer import RingWriter

__all__ = ["Part", "parts_of", "post_replay"]

_RECORD = struct.Struct("<QQQQQ40s8sQ")
"""A record with ``numel``, which is the number of the replay, apart from what repeats."""
_FLAGS = 23
"""Where packed parameters without ``numel`` have their flags."""
_pack_replay = _RECORD.pack_into
_time_ns = time.time_ns


class Part:
    """The collectives of one graph on one communicator.

    Attributes:
        channel: The communicator.
        count: How many they are.
        power: ``BASE ** count``.
        digest: Their own running hash, from zero.
        fixed: Packed parameters of the last of them, without ``numel``.
        moment: Packed graph number and flags.
    """

    __slots__ = ("_signatures", "channel", "count", "digest", "fixed", "moment", "power")

    def __init__(self, channel: Channel, calls: Sequence[GraphCall], number: int) -> None:
        signatures = [replayed(call.signature) for call in calls]
        self._signatures = signatures
        self.channel = channel
        self.count = len(calls)
        self.power = pow(BASE, len(calls), 1 << 64)
        self.digest = 0
        for signature in signatures:
            self.digest = extend(self.digest, signature)
        fixed = bytearray(calls[-1].fixed[8:])
        fixed[_FLAGS] |= layout.FIXED_REPLAY
        if calls[-1].sizes is not None:
            fixed[28:32] = bytes(4)  # it is in the graphs part
        self.fixed = bytes(fixed)
        self.moment = layout.MOMENT.pack(number & 0xFFFFFFFF, 0, layout.FLAG_REPLAYED, 0)

    def marks(self, before: int, running: int) -> Iterator[tuple[int, int]]:
        """Yields the numbers of calls that marks stand at, and the running hashes after them.

        Args:
            before: Calls on the communicator before this replay.
            running: Running hash before it.
        """
        hashes = accumulate(self._signatures, extend, initial=running)
        for seq, passed in enumerate(hashes, before):
            if seq > before and not seq % layout.MARK_EVERY:
                yield seq, passed


def parts_of(calls: Sequence[GraphCall], number: int) -> list[Part]:
    """Returns the collectives of a graph by communicator, in the order of their first calls."""
    mine: dict[Channel, list[GraphCall]] = {}
    for call in calls:
        if call.signature:
            mine.setdefault(call.channel, []).append(call)
    return [Part(channel, own, number) for channel, own in mine.items()]


def post_replay(writer: RingWriter, parts: Sequence[Part], number: int) -> int:
    """Records that a graph is replayed.

    Args:
        writer: The ring.
        parts: What the graph holds.
        number: How often it has been replayed, this time included.

    Returns:
        The position of the first record; -1 where the graph holds nothing.
    """
    first = -1
    now = _time_ns()
    for part in parts:
        channel = part.channel
        while True:
            before = channel.hash
            # As in RingWriter.post(): what follows may let in signal handlers.
            running = (before * part.power + part.digest) & MASK
            if channel.hash is before:
                # From here until the record is stored, no call and no jump.
                position = writer.position
                begin = position + 1
                made = channel.seq
                seq = made + part.count
                writer.position = begin
                channel.seq = seq
                channel.hash = running
                _pack_replay(
                    writer._buffer,
                    writer._base + position % writer.capacity * 96,
                    begin,
                    now,
                    running,
                    seq,
                    number,
                    part.fixed,
                    part.moment,
                    begin,
                )
                # ---
                break
        if first < 0:
            first = position
        if made >> 10 != seq >> 10:
            for place, passed in part.marks(made, before):
                writer._mark(channel.index, position, place, passed)
        if not begin & writer._table_mask:
            writer._write_table()
    return first
