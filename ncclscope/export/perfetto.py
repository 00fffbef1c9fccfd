"""Perfetto's trace format, for ui.perfetto.dev and its trace processor.

====================== ====================================================================
in the trace           in the run
====================== ====================================================================
track                  a rank; below it one for each communicator, and one for engine steps
slice                  a call, from its posting until the rank posts its next one
slice without an end   the last call on a communicator, not known to have completed
instant                the last sign of life of a rank; when its GPU last counted a call
flow                   the calls of one number on one communicator, across ranks
argument               a parameter of the call
====================== ====================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ncclscope.export.intervals import (
    LAST_SIGN,
    Axis,
    Interval,
    TimelineTrack,
    arguments_of,
    axis_of,
    gpu_moment,
    open_target,
    rank_name,
)
from ncclscope.export.protobuf import bytes_field, fixed64_field, int_field, text_field
from ncclscope.model import Rank, Run

# Field numbers by message, from perfetto_trace.proto.
_PACKET = 1
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT = 6, 8, 10, 11
_INTERNED_DATA, _SEQUENCE_FLAGS, _TRACK_DESCRIPTOR = 12, 13, 60
_UUID, _NAME, _PARENT, _ORDERING, _ORDER = 1, 2, 5, 11, 12
_TYPE, _TRACK, _NAME_IID, _CATEGORY_IID, _ANNOTATION, _FLOW = 9, 11, 10, 3, 4, 47
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _TEXTS = 1, 2, 3, 29
_ANNOTATION_NAME, _BOOL, _INT, _TEXT_IID = 1, 2, 4, 17
_BEGIN, _END, _INSTANT = 1, 2, 3
_EXPLICIT = 3
_REALTIME, _BOOTTIME = 1, 6
_CLEARED, _NEEDED = 1, 2
_SEQUENCE_ID = 1


def write_perfetto(run: Run, file: Path) -> None:
    """Write the trace, compressed if the name ends with ``.gz``."""
    axis = axis_of(run)
    with open_target(file) as out:
        for packet in _Trace(run, axis).packets():
            out.write(bytes_field(_PACKET, packet))


class _Trace:
    def __init__(self, run: Run, axis: Axis) -> None:
        self._run = run
        self._axis = axis
        self._known: dict[tuple[int, str], int] = {}

    def packets(self) -> Iterator[bytes]:
        """Yield the packets in the order of the file."""
        yield self._clocks()
        for rank in self._run.ranks:
            yield _descriptor(_uuid(rank.rank), rank_name(rank), order=rank.rank)
            yield from self._steps(rank)
            if rank.last_seen_ns and self._axis.timed:
                seen = max(rank.last_seen_ns, self._axis.start_ns)
                yield self._event(_INSTANT, _uuid(rank.rank), seen, LAST_SIGN, "rank", {}, None)
        for track in self._axis.tracks(self._run):
            number = track.rank.rank
            uuid = _uuid(number, track.key, track.p2p)
            yield _descriptor(uuid, track.title, parent=_uuid(number), order=track.order)
            for interval in track.intervals:
                yield from self._slice(track, uuid, interval)
            if (counted := gpu_moment(self._axis, track)) is not None:
                time_ns, text, about = counted
                yield self._event(_INSTANT, uuid, time_ns, text, "gpu", about, None)

    def _clocks(self) -> bytes:
        """Return the packet that declares the hosts' clock as the trace's clock."""
        start = max(self._axis.start_ns, 1)
        clocks = b"".join(
            bytes_field(1, int_field(1, clock) + int_field(2, start))
            for clock in (_REALTIME, _BOOTTIME)
        )
        packet = bytes_field(_CLOCK_SNAPSHOT, clocks)
        return packet + _sequence(_CLEARED | _NEEDED)

    def _slice(self, track: TimelineTrack, uuid: int, interval: Interval) -> Iterator[bytes]:
        call = interval.call
        flow = None if track.p2p else _number(f"{track.key} {call.seq}")
        about = arguments_of(call)
        yield self._event(_BEGIN, uuid, interval.start_ns, call.op, track.name, about, flow)
        if not interval.open:
            yield _end(uuid, interval.end_ns)

    def _steps(self, rank: Rank) -> Iterator[bytes]:
        steps = list(self._axis.steps(rank))
        if not steps:
            return
        uuid = _uuid(rank.rank, "steps")
        yield _descriptor(uuid, "engine steps", parent=_uuid(rank.rank), order=0)
        for step, start, end in steps:
            about: dict[str, object] = {"step": step.number, "dummy": step.dummy}
            if step.tokens is not None:
                about["tokens"] = step.tokens
            name = "dummy step" if step.dummy else "step"
            yield self._event(_BEGIN, uuid, start, name, "steps", about, None)
            yield _end(uuid, end)

    def _event(
        self,
        kind: int,
        uuid: int,
        time_ns: int,
        name: str,
        category: str,
        about: Mapping[str, object],
        flow: int | None,
    ) -> bytes:
        new: list[bytes] = []
        event = int_field(_TYPE, kind) + int_field(_TRACK, uuid)
        event += int_field(_NAME_IID, self._iid(_EVENT_NAMES, name, new))
        event += int_field(_CATEGORY_IID, self._iid(_CATEGORIES, category, new))
        for key, value in about.items():
            note = int_field(_ANNOTATION_NAME, self._iid(_ANNOTATION_NAMES, key, new))
            if isinstance(value, bool):
                note += int_field(_BOOL, value)
            elif isinstance(value, int):
                note += int_field(_INT, value)
            else:
                note += int_field(_TEXT_IID, self._iid(_TEXTS, str(value), new))
            event += bytes_field(_ANNOTATION, note)
        if flow is not None:
            event += fixed64_field(_FLOW, flow)
        packet = int_field(_TIMESTAMP, time_ns) + bytes_field(_TRACK_EVENT, event)
        if new:
            packet += bytes_field(_INTERNED_DATA, b"".join(new))
        return packet + _sequence(_NEEDED)

    def _iid(self, kind: int, text: str, new: list[bytes]) -> int:
        """Return the interned id of a text; append the definition of a new one to ``new``.

        Args:
            kind: Field of the interned data.
            text: Text to intern.
            new: Definitions for the packet of the event.
        """
        found = self._known.get((kind, text))
        if found is None:
            found = self._known[kind, text] = len(self._known) + 1
            new.append(bytes_field(kind, int_field(1, found) + text_field(2, text)))
        return found


def _end(uuid: int, time_ns: int) -> bytes:
    event = int_field(_TYPE, _END) + int_field(_TRACK, uuid)
    packet = int_field(_TIMESTAMP, time_ns) + bytes_field(_TRACK_EVENT, event)
    return packet + _sequence(_NEEDED)


def _descriptor(uuid: int, name: str, *, parent: int | None = None, order: int) -> bytes:
    track = int_field(_UUID, uuid) + text_field(_NAME, name)
    if parent is not None:
        track += int_field(_PARENT, parent)
    track += int_field(_ORDERING, _EXPLICIT) + int_field(_ORDER, order)
    return bytes_field(_TRACK_DESCRIPTOR, track)


def _sequence(flags: int) -> bytes:
    return int_field(_SEQUENCE, _SEQUENCE_ID) + int_field(_SEQUENCE_FLAGS, flags)


def _uuid(*what: object) -> int:
    return _number(repr(what))


def _number(text: str) -> int:
    """Return a hash of 63 bits, never 0."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1
