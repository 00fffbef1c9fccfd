"""Who is alone: the ranks that wait in a call, or those that have not come to it.

A call that some members wait in and others never posted says by itself only that the two sides
differ. Whoever is fewer has left the program that most ranks run: few who wait have posted a call
too many, few who are missing did not come. With as many on one side as on the other nobody is
singled out. Groups that play the same part elsewhere, and have come past this place, say more than
numbers: either they posted the call, or they went on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.analysis.waits.engine_steps import counterpart, is_idle
from ncclscope.analysis.wording import comm_text, ranks_text, verb
from ncclscope.model import Communicator, Rank

if TYPE_CHECKING:
    from ncclscope.analysis.case import Case
    from ncclscope.analysis.waits.waits import PendingCall

__all__ = ["Sides", "dependants", "describe_sides", "take_sides", "waiting_in"]


@dataclass(frozen=True)
class Sides:
    """The two sides of a call that not all members have posted.

    Attributes:
        waiting: The ranks that wait in the call.
        absent: Members that never posted it and wait for nobody.
        diverging: Which of the two is singled out: ``waiting``, ``absent``, or empty.
        reason: Why, where other groups say so and not numbers alone.
    """

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    diverging: str
    reason: str = ""

    @property
    def candidates(self) -> tuple[int, ...]:
        """All ranks among which the diverging one is."""
        return tuple(sorted({*self.waiting, *self.absent}))


def take_sides(case: Case, pending: PendingCall, absent: Sequence[int]) -> Sides:
    """Tell which side of a call that not all have posted is singled out.

    Args:
        case: The case.
        pending: A rank that waits in it.
        absent: Members that have not posted it and wait for nobody, with or without a record.
    """
    waiting = waiting_in(case, pending)
    held_up = dependants(case, absent) | _posted(case, pending)
    by_number = ""
    if len(held_up) != len(absent):
        by_number = "absent" if len(held_up) > len(absent) else "waiting"
    says, reason = _same_part_elsewhere(case, pending)
    diverging = says or by_number
    if not diverging and all(
        n in case.run.by_rank and is_idle(case.run.by_rank[n]) for n in absent
    ):
        diverging = "absent"  # what they do is recorded: they wait to be asked for something
    if says == "waiting" and by_number == "absent":
        diverging, reason = "", ""  # most wait in what others of the same part never post
    return Sides(waiting, tuple(sorted(absent)), diverging, reason)


def waiting_in(case: Case, pending: PendingCall) -> tuple[int, ...]:
    """Return the ranks that wait in the same call."""
    return tuple(
        number
        for number, other in sorted(case.waits.pending_calls.items())
        if (other.comm.key, other.call.seq) == (pending.comm.key, pending.call.seq)
    )


def dependants(case: Case, ranks: Iterable[int]) -> set[int]:
    """Return the ranks that wait for some others, directly or behind further ranks."""
    found: set[int] = set()
    reached = set(ranks)
    while True:
        more = {
            number
            for number, pending in case.waits.pending_calls.items()
            if number not in reached and reached.intersection(pending.awaited)
        }
        if not more:
            return found
        found |= more
        reached |= more


def _posted(case: Case, pending: PendingCall) -> set[int]:
    """Return the ranks that have posted a call, whether they stand in it or came past."""
    logs = {rank.rank: rank.logs[pending.comm.key] for rank in case.run.members(pending.comm.key)}
    return {number for number, log in logs.items() if log.calls >= pending.call.seq}


def _same_part_elsewhere(case: Case, pending: PendingCall) -> tuple[str, str]:
    """Ask groups of the same kind whether they posted such a call: who is singled out, and why."""
    posted: list[Communicator] = []
    went_on: list[Communicator] = []
    for key, comm in case.run.communicators.items():
        if not comm.kind or comm.kind != pending.comm.kind or {*comm.ranks} & {*pending.comm.ranks}:
            continue
        members = [rank for rank in case.run.members(key) if rank.rank in comm.ranks]
        if len(members) < len(comm.ranks) or not members:
            continue
        places = {_place(case, pending, rank, key) for rank in members}
        if places == {True}:
            posted.append(comm)
        elif places == {False} and all(_came_past(case, pending, rank) for rank in members):
            went_on.append(comm)
    if bool(posted) == bool(went_on):
        return "", ""
    names = "; ".join(comm_text(comm) for comm in (posted or went_on)[:3])
    if posted:
        return "absent", f"{names}: all members posted the call that corresponds to it"
    return "waiting", f"{names}: all members came past this place without such a call"


def _place(case: Case, pending: PendingCall, rank: Rank, key: str) -> bool | None:
    """Whether a rank posted its counterpart of a call; None where it is at another place."""
    own = case.run.by_rank[pending.rank]
    log = rank.logs[key]
    seq = counterpart(own, own.logs[pending.comm.key], pending.call.seq, rank, log)
    if seq is None or seq < log.first or seq > log.calls + 1:
        return None
    return seq <= log.calls


def _came_past(case: Case, pending: PendingCall, rank: Rank) -> bool:
    """Whether a rank has left the place of a call behind it without posting one.

    It has ended in order, waits further on for those who wait in the call, or rests with nothing
    under way, for as long as they have waited.
    """
    if rank.exited:
        return True
    own = case.waits.pending_calls.get(rank.rank)
    if own is not None:
        return pending.rank in own.absent
    rests = case.all_quiet or case.longest_common_quiet([rank.rank]) is not None
    return rank.rank not in case.waits.heads and rests


def describe_sides(sides: Sides) -> str:
    """Say in numbers why one side is singled out."""
    if sides.reason:
        return sides.reason
    few, many = sides.waiting, sides.absent
    if sides.diverging == "absent":
        return f"more ranks wait for {ranks_text(many)} than are missing"
    return (
        f"{ranks_text(few)} {verb(few, 'wait')} in a call that {ranks_text(many)}, who are more, "
        f"never posted"
    )
