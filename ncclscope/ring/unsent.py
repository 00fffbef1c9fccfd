"""Withdraw a call that raised an exception before it was sent."""

from __future__ import annotations

from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.replays import Ring

_COMM, _SEQ, _HASH, _FLAGS = slice(56, 58), slice(24, 32), slice(16, 24), 32 + layout.FIXED_FLAGS
_SPECIAL = layout.FIXED_P2P | layout.FIXED_STEP


def withdraw(writer: Ring, channel: Channel, position: int) -> bool:
    """Take back the newest call of a channel, so that the next one has its number.

    Args:
        writer: The writer of the ring.
        channel: The communicator of the call.
        position: Position of the call's record.

    Returns:
        Whether it was withdrawn. A call stays if another followed, or if the table or a mark
        counts it already.
    """
    record = _record(writer, position)
    if record is None or position < writer._tabled:
        return False
    seq, flags = _number(record[_SEQ]), record[_FLAGS]
    if _number(record[_COMM]) != channel.index:
        return False
    if flags & layout.FIXED_P2P:
        if seq != channel.p2p:
            return False
        channel.p2p = seq - 1
    else:
        if flags & (layout.FIXED_STEP | layout.FIXED_REPLAY) or seq != channel.seq:
            return False
        before = _hash_before(writer, channel, position)
        if before is None or not seq % layout.MARK_EVERY:
            return False
        channel.seq, channel.hash = seq - 1, before
    changed = bytearray(record)
    changed[_FLAGS] = layout.FIXED_STEP | layout.FIXED_UNSENT
    at = writer._base + position % writer.capacity * layout.RECORD.size
    writer._buffer[at : at + len(record)] = layout.sealed_record(bytes(changed))
    return True


def _hash_before(writer: Ring, channel: Channel, position: int) -> int | None:
    """Return the running hash before a collective; None if the call before it is lost."""
    if channel.seq == 1:
        return 0
    while (record := _record(writer, position := position - 1)) is not None:
        if _number(record[_COMM]) == channel.index and not record[_FLAGS] & _SPECIAL:
            return _number(record[_HASH]) if _number(record[_SEQ]) == channel.seq - 1 else None
    return None


def _record(writer: Ring, position: int) -> bytes | None:
    if position < 0 or not 0 < writer.position - position <= writer.capacity:
        return None
    start = writer._base + position % writer.capacity * layout.RECORD.size
    return bytes(writer._buffer[start : start + layout.RECORD.size])


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
