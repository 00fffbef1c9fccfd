"""How each process and each communicator stands, and which of them somebody should look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclscope.model import Communicator, State
from ncclscope.readers.ring.cursor import LastCall, RingCursor
from ncclscope.untrusted import printable, texts
from ncclscope.watch.watch import Poll

__all__ = [
    "MARKS",
    "CommStanding",
    "RankStanding",
    "comm_label",
    "comm_standings",
    "farthest",
    "rank_standings",
]

MARKS = {
    "!": ("named by the verdict", "bold red"),
    "?": ("one of those that it names", "red"),
    "X": ("killed or crashed, others run", "yellow"),
    "*": ("stalled inside of a call", "yellow"),
    "<": ("behind its peers, and still", "yellow"),
    "x": ("ended", "dim"),
    "": ("", ""),
}
"""What stands before a rank or a communicator: its meaning and its style, the worst first."""
_CALM = 1.0
"""Seconds without progress after which a rank that is behind is worth a mark."""


@dataclass(frozen=True)
class RankStanding:
    """One process.

    Attributes:
        words: What is known of it.
        mark: One of :data:`MARKS`.
        key: The communicator that matters: where it is said to diverge or is behind, else that
            of its newest collective; empty where it has made none.
        last: Its newest collective there.
        is_inside: Whether that is known not to have completed.
        lag: Calls by which it is behind there.
        lags: The same for all communicators on which it is behind.
        quiet: Seconds without progress.
    """

    cursor: RingCursor
    mark: str
    key: str
    last: LastCall | None
    is_inside: bool
    lag: int
    lags: dict[str, int]
    quiet: float

    @property
    def path(self) -> Path:
        """What it is known by."""
        return self.cursor.path

    @property
    def name(self) -> str:
        """Its rank; of a process that is none, what it is."""
        if self.cursor.rank >= 0:
            return str(self.cursor.rank)
        role = self.cursor.about.get("role")
        return printable(role)[:8] if isinstance(role, str) and role else "-"

    @property
    def labels(self) -> str:
        """The names that it gave itself, such as ``dp1 tp2``."""
        found = texts(self.cursor.about.get("labels"))
        return printable(" ".join(f"{name}{found[name]}" for name in sorted(found)))[:24]


@dataclass(frozen=True)
class CommStanding:
    """One communicator.

    Attributes:
        comm: The communicator.
        mark: One of :data:`MARKS`.
        members: Processes that have used it, by rank.
        calls: Collectives of the member that has come farthest.
        leader: That member.
        lags: By rank, of those that are behind.
        inside: Ranks whose newest call is known not to have completed.
        tells: Whether any member has said that a call had completed.
        quiet: Seconds since a collective was posted.
    """

    comm: Communicator
    mark: str
    members: tuple[RingCursor, ...]
    calls: int
    leader: RingCursor
    lags: dict[int, int]
    inside: tuple[int, ...]
    tells: bool
    quiet: float

    @property
    def key(self) -> str:
        """What it is known by."""
        return self.comm.key


def comm_label(comm: Communicator) -> str:
    """Returns a communicator's name; a label is foreign text and may be missing."""
    return printable(comm.label) or f"comm-{printable(comm.key[-8:])}"


def farthest(ranks: Iterable[RingCursor]) -> dict[str, int]:
    """Returns how many calls the member has made that has come farthest, by communicator."""
    found: dict[str, int] = {}
    for cursor in ranks:
        for key, comm_cursor in cursor.comm_cursors.items():
            found[key] = max(found.get(key, 0), comm_cursor.seq)
    return found


def rank_standings(poll: Poll) -> list[RankStanding]:
    """Returns the processes in the order of their ranks."""
    most, telling = farthest(poll.ranks), _telling(poll.ranks)
    return [_rank_standing(poll, cursor, most, telling) for cursor in poll.ranks]


def _telling(ranks: Iterable[RingCursor]) -> set[str]:
    """Returns the communicators of which any member has said that a call had completed."""
    return {
        key
        for cursor in ranks
        for key, comm_cursor in cursor.comm_cursors.items()
        if comm_cursor.tells
    }


def _rank_standing(
    poll: Poll, cursor: RingCursor, most: dict[str, int], telling: set[str]
) -> RankStanding:
    lags = {
        key: most[key] - comm_cursor.seq
        for key, comm_cursor in cursor.comm_cursors.items()
        if comm_cursor.seq < most[key]
    }
    quiet = max(0.0, poll.now - cursor.moved_at)
    cause = poll.verdict.cause if poll.verdict is not None and poll.in_trouble else None
    if cause is not None and cursor.rank in cause.diverging_ranks:
        mark = "!"
    elif cause is not None and cursor.rank in cause.candidate_ranks:
        mark = "?"
    elif cursor.over:
        mark = "x" if cursor.exited or poll.activity == "over" else "X"
    elif cursor.path in poll.stuck:
        mark = "*"
    else:
        mark = "<" if lags and quiet >= _CALM else ""
    about = cause.comm.key if cause is not None and cause.comm is not None else ""
    if about in cursor.comm_cursors:
        key = about
    elif mark == "<":
        key = max(lags, key=lambda key: lags[key])
    else:
        key = _newest(cursor)
    last = cursor.last(key) if key else None
    inside = last is not None and last.state is not State.COMPLETED and key in telling
    return RankStanding(
        cursor=cursor,
        mark=mark,
        key=key,
        last=last,
        is_inside=inside,
        lag=lags.get(key, 0),
        lags=lags,
        quiet=quiet,
    )


def _newest(cursor: RingCursor) -> str:
    """Returns the communicator of the newest collective."""
    times = {
        key: int(comm_cursor.last["time"])
        for key, comm_cursor in cursor.comm_cursors.items()
        if comm_cursor.last is not None
    }
    return max(times, key=lambda key: times[key], default="")


def comm_standings(poll: Poll, wall: float) -> list[CommStanding]:
    """Returns the communicators that have been used, by name.

    Args:
        poll: What is known of the job.
        wall: Seconds since 1970 at that moment.
    """
    members: dict[str, list[RingCursor]] = {}
    for cursor in poll.ranks:
        for key, comm_cursor in cursor.comm_cursors.items():
            if comm_cursor.seq or comm_cursor.p2p:
                members.setdefault(key, []).append(cursor)
    found = [_comm_standing(poll, key, tuple(own), wall) for key, own in members.items()]
    return sorted(found, key=lambda one: (comm_label(one.comm), one.comm.ranks, one.key))


def _comm_standing(poll: Poll, key: str, own: tuple[RingCursor, ...], wall: float) -> CommStanding:
    leader = max(own, key=lambda cursor: cursor.comm_cursors[key].seq)
    calls = leader.comm_cursors[key].seq
    lags = {
        cursor.rank: calls - cursor.comm_cursors[key].seq
        for cursor in own
        if cursor.comm_cursors[key].seq < calls
    }
    tells = any(cursor.comm_cursors[key].tells for cursor in own)
    inside = tuple(cursor.rank for cursor in own if tells and key in cursor.pending())
    last = [call.time_ns for cursor in own if (call := cursor.last(key)) is not None]
    quiet = max(0.0, wall - max(last) / 1e9) if last else 0.0
    cause = poll.verdict.cause if poll.verdict is not None and poll.in_trouble else None
    mark = ""
    if cause is not None and cause.comm is not None and cause.comm.key == key:
        mark = "!"
    elif any(cursor.path in poll.stuck and key in cursor.pending() for cursor in own):
        mark = "*"
    elif lags and quiet >= _CALM:
        mark = "<"
    elif all(cursor.over for cursor in own):
        mark = "x"
    return CommStanding(
        comm=leader.comm_cursors[key].comm,
        mark=mark,
        members=own,
        calls=calls,
        leader=leader,
        lags=lags,
        inside=inside,
        tells=tells,
        quiet=quiet,
    )
