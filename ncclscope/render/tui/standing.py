"""How each process and each communicator stands, and which of them somebody should look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclscope.model import Communicator, State
from ncclscope.readers.ring.cursor import LastCall, Words
from ncclscope.untrusted import printable, texts
from ncclscope.watch.watch import Look

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

    words: Words
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
        return self.words.path

    @property
    def name(self) -> str:
        """Its rank; of a process that is none, what it is."""
        if self.words.rank >= 0:
            return str(self.words.rank)
        role = self.words.about.get("role")
        return printable(role)[:8] if isinstance(role, str) and role else "-"

    @property
    def labels(self) -> str:
        """The names that it gave itself, such as ``dp1 tp2``."""
        found = texts(self.words.about.get("labels"))
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
    members: tuple[Words, ...]
    calls: int
    leader: Words
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


def farthest(ranks: Iterable[Words]) -> dict[str, int]:
    """Returns how many calls the member has made that has come farthest, by communicator."""
    found: dict[str, int] = {}
    for words in ranks:
        for key, strand in words.strands.items():
            found[key] = max(found.get(key, 0), strand.seq)
    return found


def rank_standings(look: Look) -> list[RankStanding]:
    """Returns the processes in the order of their ranks."""
    most, telling = farthest(look.ranks), _telling(look.ranks)
    return [_rank_standing(look, words, most, telling) for words in look.ranks]


def _telling(ranks: Iterable[Words]) -> set[str]:
    """Returns the communicators of which any member has said that a call had completed."""
    return {key for words in ranks for key, strand in words.strands.items() if strand.tells}


def _rank_standing(
    look: Look, words: Words, most: dict[str, int], telling: set[str]
) -> RankStanding:
    lags = {
        key: most[key] - strand.seq
        for key, strand in words.strands.items()
        if strand.seq < most[key]
    }
    quiet = max(0.0, look.now - words.moved_at)
    cause = look.verdict.cause if look.verdict is not None and look.in_trouble else None
    if cause is not None and words.rank in cause.diverging_ranks:
        mark = "!"
    elif cause is not None and words.rank in cause.candidate_ranks:
        mark = "?"
    elif words.over:
        mark = "x" if words.exited or look.activity == "over" else "X"
    elif words.path in look.stuck:
        mark = "*"
    else:
        mark = "<" if lags and quiet >= _CALM else ""
    about = cause.comm.key if cause is not None and cause.comm is not None else ""
    if about in words.strands:
        key = about
    elif mark == "<":
        key = max(lags, key=lambda key: lags[key])
    else:
        key = _newest(words)
    last = words.last(key) if key else None
    inside = last is not None and last.state is not State.COMPLETED and key in telling
    return RankStanding(
        words=words,
        mark=mark,
        key=key,
        last=last,
        is_inside=inside,
        lag=lags.get(key, 0),
        lags=lags,
        quiet=quiet,
    )


def _newest(words: Words) -> str:
    """Returns the communicator of the newest collective."""
    times = {
        key: int(strand.last["time"])
        for key, strand in words.strands.items()
        if strand.last is not None
    }
    return max(times, key=lambda key: times[key], default="")


def comm_standings(look: Look, wall: float) -> list[CommStanding]:
    """Returns the communicators that have been used, by name.

    Args:
        look: What is known of the job.
        wall: Seconds since 1970 at that moment.
    """
    members: dict[str, list[Words]] = {}
    for words in look.ranks:
        for key, strand in words.strands.items():
            if strand.seq or strand.p2p:
                members.setdefault(key, []).append(words)
    found = [_comm_standing(look, key, tuple(own), wall) for key, own in members.items()]
    return sorted(found, key=lambda one: (comm_label(one.comm), one.comm.ranks, one.key))


def _comm_standing(look: Look, key: str, own: tuple[Words, ...], wall: float) -> CommStanding:
    leader = max(own, key=lambda words: words.strands[key].seq)
    calls = leader.strands[key].seq
    lags = {
        words.rank: calls - words.strands[key].seq
        for words in own
        if words.strands[key].seq < calls
    }
    tells = any(words.strands[key].tells for words in own)
    inside = tuple(words.rank for words in own if tells and key in words.pending())
    last = [call.time_ns for words in own if (call := words.last(key)) is not None]
    quiet = max(0.0, wall - max(last) / 1e9) if last else 0.0
    cause = look.verdict.cause if look.verdict is not None and look.in_trouble else None
    mark = ""
    if cause is not None and cause.comm is not None and cause.comm.key == key:
        mark = "!"
    elif any(words.path in look.stuck and key in words.pending() for words in own):
        mark = "*"
    elif lags and quiet >= _CALM:
        mark = "<"
    elif all(words.over for words in own):
        mark = "x"
    return CommStanding(
        comm=leader.strands[key].comm,
        mark=mark,
        members=own,
        calls=calls,
        leader=leader,
        lags=lags,
        inside=inside,
        tells=tells,
        quiet=quiet,
    )
