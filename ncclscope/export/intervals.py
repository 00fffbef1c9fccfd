"""Calls on a time axis, for the formats that draw them.

A record holds the time of posting only. So a call is drawn until the rank posts its next one on any
communicator: in between the program was inside the call or after it. The last call of a rank on a
communicator has no end unless it is known to have completed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ncclscope.model import Call, Rank, Run, State, Step
from ncclscope.model.signature import P2P_OPS
from ncclscope.private import open_private
from ncclscope.wording.names import call_text, comm_text

LAST_SIGN = "last sign of life"
"""Name of the event at the end of a rank's records."""


@dataclass(frozen=True)
class Interval:
    """One call on the axis.

    Attributes:
        call: The call.
        start_ns: Time of posting in nanoseconds.
        end_ns: Time of the rank's next call in nanoseconds; for an open call, the end of the axis.
        open: Whether it is the last on its track and not known to have completed.
    """

    call: Call
    start_ns: int
    end_ns: int
    open: bool


@dataclass(frozen=True)
class TimelineTrack:
    """One rank on one communicator; sends and receives have a track of their own.

    Attributes:
        rank: The rank.
        key: Key of the communicator.
        p2p: Whether it holds sends and receives.
        name: Label of the track.
        title: The same with the communicator's members.
        order: Number of the track among those of its rank, from 1.
        intervals: Calls in the order of time, without overlaps.
    """

    rank: Rank
    key: str
    p2p: bool
    name: str
    title: str
    order: int
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class Axis:
    """The time axis of a run.

    Attributes:
        start_ns: Time of the first call in nanoseconds.
        end_ns: Time of the last call or heartbeat in nanoseconds.
        timed: Whether times are recorded; otherwise calls are a microsecond apart, in order.
    """

    start_ns: int
    end_ns: int
    timed: bool

    def tracks(self, run: Run) -> Iterator[TimelineTrack]:
        """Yield the tracks of all ranks, rank by rank, in the order of communicators."""
        for rank in run.ranks:
            yield from self._of_rank(run, rank)

    def steps(self, rank: Rank) -> Iterator[tuple[Step, int, int]]:
        """Yield the engine's steps that have calls, with start and end in nanoseconds."""
        calls = rank.kept_calls()
        times = self._times(calls)
        begun: list[tuple[Step, int]] = []
        place = 0
        for step in rank.steps:
            while place < len(calls) and calls[place].position < step.position:
                place += 1
            if place == len(calls):
                break
            if begun and begun[-1][1] == times[place]:
                begun.pop()  # nothing was posted in it
            begun.append((step, times[place]))
        for number, (step, start) in enumerate(begun):
            end = begun[number + 1][1] if number + 1 < len(begun) else times[-1]
            yield step, start, max(end, start)

    def _times(self, calls: Sequence[Call]) -> list[int]:
        """Return the time of posting of each call in nanoseconds, never decreasing."""
        times: list[int] = []
        for call in calls:
            time = (call.time_ns or 0) if self.timed else call.position * 1000
            times.append(max(time, times[-1] if times else self.start_ns))
        return times

    def _of_rank(self, run: Run, rank: Rank) -> Iterator[TimelineTrack]:
        calls = rank.kept_calls()
        times = self._times(calls)
        ends = [*times[1:], max(self.end_ns, times[-1] + 1000)] if times else []
        is_reported = any(call.state is State.COMPLETED for call in calls)
        placed: dict[tuple[str, bool], list[Interval]] = {}
        for call, start, end in zip(calls, times, ends, strict=True):
            where = (call.comm, call.op in P2P_OPS)
            placed.setdefault(where, []).append(Interval(call, start, end, False))
        for order, ((key, p2p), found) in enumerate(sorted(placed.items()), 1):
            last = found[-1]
            if is_reported and last.call.state is not State.COMPLETED:
                end = max(self.end_ns, last.start_ns + 1000)
                found[-1] = Interval(last.call, last.start_ns, end, True)
            comm = run.communicators[key]
            suffix = " p2p" if p2p else ""
            name, title = (comm.label or key[:12]) + suffix, comm_text(comm) + suffix
            yield TimelineTrack(rank, key, p2p, name, title, order, tuple(found))


def gpu_moment(axis: Axis, track: TimelineTrack) -> tuple[int, str, dict[str, Any]] | None:
    """Return time in nanoseconds, description and counts of the GPU's last count on a track.

    None if the GPU did not count, or the time is unknown.
    """
    progress = None if track.p2p else track.rank.device.get(track.key)
    if progress is None or not axis.timed or progress.finished_ns is None:
        return None
    about = {
        name: value
        for name in ("finished", "entered", "posted", "at")
        if (value := getattr(progress, name)) is not None
    }
    text = f"GPU: call {progress.finished} finished"
    return max(progress.finished_ns, axis.start_ns), text, about


def axis_of(run: Run) -> Axis:
    """Return the time axis of a run."""
    times = [call.time_ns for rank in run.ranks for call in rank.kept_calls() if call.time_ns]
    if not times:
        most = max((call.position for rank in run.ranks for call in rank.kept_calls()), default=0)
        return Axis(0, (most + 1) * 1000, timed=False)
    seen = [rank.last_seen_ns for rank in run.ranks if rank.last_seen_ns]
    return Axis(min(times), max(times + seen), timed=True)


def rank_name(rank: Rank) -> str:
    """Return ``rank 3 (node-0, pid 1003, tp3 dp0)``."""
    about = [rank.host] if rank.host else []
    if rank.pid:
        about.append(f"pid {rank.pid}")
    if rank.labels:
        about.append(" ".join(f"{name}{value}" for name, value in rank.labels.items()))
    return f"rank {rank.rank}" + (f" ({', '.join(about)})" if about else "")


def arguments_of(call: Call) -> Mapping[str, Any]:
    """Return the known parameters of a call, as arguments of its event."""
    known: dict[str, Any] = {"seq": call.seq, "state": call.state.word, "call": call_text(call)}
    for name in ("dtype", "redop", "root", "peer", "numel", "site", "group", "graph"):
        value = getattr(call, name)
        if value is not None:
            known[name] = value
    for name in ("shape", "out_shape", "sizes", "out_sizes"):
        value = getattr(call, name)
        if value is not None:
            known[name] = str(list(value))
    if call.captured:
        known["captured"] = True
    if call.replay is not None:
        known["replay"] = call.replay.number
        known["graph_call"] = call.replay.call
    return known


@contextmanager
def open_target(file: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, with gzip if the name ends with ``.gz``.

    Equal contents give equal files: the header holds neither time nor name.
    """
    with open_private(file) as raw:
        if file.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
