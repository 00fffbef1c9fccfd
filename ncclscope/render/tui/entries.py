"""Entries of the upper list: one for each process or communicator, with its mark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclscope.model import Communicator, State
from ncclscope.readers.ring.cursor import LastCall, RingCursor
from ncclscope.untrusted import printable, texts
from ncclscope.watch.poll import Poll
from ncclscope.wording.names import shape_text

_QUIET_MARKED = 1.0
"""Seconds without progress after which a rank that is behind gets a mark."""


@dataclass(frozen=True)
class RankEntry:
    """Entry of one process.

    Attributes:
        cursor: Cursor of its ring.
        mark: One of :data:`MARKS`.
        key: Key of the communicator to show: that of the verdict, else one on which the rank is
            behind, else that of its newest collective; empty without a collective.
        last: Its newest collective there.
        is_pending: Whether that collective is known not to have completed.
        lag: Calls by which it is behind there.
        lags: Calls by which it is behind, by key of the communicator.
        quiet: Seconds without progress.
    """

    cursor: RingCursor
    mark: str
    key: str
    last: LastCall | None
    is_pending: bool
    lag: int
    lags: dict[str, int]
    quiet: float

    @property
    def path(self) -> Path:
        """Path of its ring, which identifies it."""
        return self.cursor.path

    @property
    def name(self) -> str:
        """Its rank; for a process without a rank its role."""
        if self.cursor.rank >= 0:
            return str(self.cursor.rank)
        role = self.cursor.about.get("role")
        return printable(role)[:8] if isinstance(role, str) and role else "-"

    @property
    def labels(self) -> str:
        """Its own labels, such as ``dp1 tp2``."""
        found = texts(self.cursor.about.get("labels"))
        return printable(" ".join(f"{name}{found[name]}" for name in sorted(found)))[:24]


@dataclass(frozen=True)
class CommEntry:
    """Entry of one communicator.

    Attributes:
        comm: The communicator.
        mark: One of :data:`MARKS`.
        members: Cursors of the processes that have used it, in the order of ranks.
        calls: Collectives posted by the farthest member.
        leader: Cursor of that member.
        lags: Calls by which a member is behind, by rank.
        pending: Ranks whose newest call is known not to have completed.
        reports_completion: Whether any member has recorded the completion of a call.
        quiet: Seconds since a collective was posted.
    """

    comm: Communicator
    mark: str
    members: tuple[RingCursor, ...]
    calls: int
    leader: RingCursor
    lags: dict[int, int]
    pending: tuple[int, ...]
    reports_completion: bool
    quiet: float

    @property
    def key(self) -> str:
        """Key of the communicator, which identifies it."""
        return self.comm.key


def comm_label(comm: Communicator) -> str:
    """Return a communicator's label, or the end of its key without one."""
    return printable(comm.label) or f"comm-{printable(comm.key[-8:])}"


def last_text(last: LastCall | None) -> str:
    """Return operation and shape of a call; empty without one."""
    if last is None:
        return ""
    return " ".join(filter(None, (printable(last.op), shape_text(last.shape))))


def rank_entries(poll: Poll) -> list[RankEntry]:
    """Return the entries of all processes, in the order of ranks."""
    most, reporting = poll.farthest(), _reporting(poll.ranks)
    return [_rank_entry(poll, cursor, most, reporting) for cursor in poll.ranks]


def _reporting(ranks: Iterable[RingCursor]) -> set[str]:
    """Return the communicators for which any member has recorded the completion of a call."""
    return {
        key for cursor in ranks for key, on_comm in cursor.comm_cursors.items() if on_comm.tells
    }


def _rank_entry(
    poll: Poll, cursor: RingCursor, most: dict[str, int], reporting: set[str]
) -> RankEntry:
    lags = {
        key: most[key] - on_comm.seq
        for key, on_comm in cursor.comm_cursors.items()
        if on_comm.seq < most[key]
    }
    quiet = max(0.0, poll.now - cursor.moved_at)
    cause = poll.cause
    if cause is not None and cursor.rank in cause.diverging_ranks:
        mark = "!"
    elif cause is not None and cursor.rank in cause.candidate_ranks:
        mark = "?"
    elif cursor.over:
        mark = "x" if cursor.exited or poll.activity == "over" else "X"
    elif cursor.path in poll.stuck:
        mark = "*"
    else:
        mark = "<" if lags and quiet >= _QUIET_MARKED else ""
    about = cause.comm.key if cause is not None and cause.comm is not None else ""
    if about in cursor.comm_cursors:
        key = about
    elif mark == "<":
        key = max(lags, key=lambda key: lags[key])
    else:
        key = _newest(cursor)
    last = cursor.last(key) if key else None
    pending = last is not None and last.state is not State.COMPLETED and key in reporting
    return RankEntry(
        cursor=cursor,
        mark=mark,
        key=key,
        last=last,
        is_pending=pending,
        lag=lags.get(key, 0),
        lags=lags,
        quiet=quiet,
    )


def _newest(cursor: RingCursor) -> str:
    """Return the key of the communicator of the newest collective; empty without one."""
    times = {
        key: int(on_comm.last["time"])
        for key, on_comm in cursor.comm_cursors.items()
        if on_comm.last is not None
    }
    return max(times, key=lambda key: times[key], default="")


def comm_entries(poll: Poll, wall: float) -> list[CommEntry]:
    """Return the entries of all communicators that have been used, by name.

    Args:
        poll: Sample of the job.
        wall: Time of the sample in seconds since 1970.
    """
    members: dict[str, list[RingCursor]] = {}
    for cursor in poll.ranks:
        for key, on_comm in cursor.comm_cursors.items():
            if on_comm.seq or on_comm.p2p:
                members.setdefault(key, []).append(cursor)
    found = [_comm_entry(poll, key, tuple(own), wall) for key, own in members.items()]
    return sorted(found, key=lambda one: (comm_label(one.comm), one.comm.ranks, one.key))


def _comm_entry(poll: Poll, key: str, own: tuple[RingCursor, ...], wall: float) -> CommEntry:
    leader = max(own, key=lambda cursor: cursor.comm_cursors[key].seq)
    calls = leader.comm_cursors[key].seq
    lags = {
        cursor.rank: calls - cursor.comm_cursors[key].seq
        for cursor in own
        if cursor.comm_cursors[key].seq < calls
    }
    reports = any(cursor.comm_cursors[key].tells for cursor in own)
    pending = tuple(cursor.rank for cursor in own if reports and key in cursor.pending())
    last = [call.time_ns for cursor in own if (call := cursor.last(key)) is not None]
    quiet = max(0.0, wall - max(last) / 1e9) if last else 0.0
    cause = poll.cause
    mark = ""
    if cause is not None and cause.comm is not None and cause.comm.key == key:
        mark = "!"
    elif any(cursor.path in poll.stuck and key in cursor.pending() for cursor in own):
        mark = "*"
    elif lags and quiet >= _QUIET_MARKED:
        mark = "<"
    elif all(cursor.over for cursor in own):
        mark = "x"
    return CommEntry(
        comm=leader.comm_cursors[key].comm,
        mark=mark,
        members=own,
        calls=calls,
        leader=leader,
        lags=lags,
        pending=pending,
        reports_completion=reports,
        quiet=quiet,
    )
