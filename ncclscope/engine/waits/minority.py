"""Find the minority: the ranks that wait in a call, or the ranks that have not joined it.

If some members wait in a call that others never posted, the call alone only shows that the two
sides differ. The minority has left the common sequence: few absent ranks did not join, and few
waiting ranks posted an extra call if the others went on without it. Otherwise no rank is
identified. Other groups with the same role that have passed this point are stronger evidence than
numbers: either they posted the call, or they went on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.engine.coverage import uses_unrecorded
from ncclscope.engine.sequences.habit import is_due
from ncclscope.engine.waits.endings import given_up_after
from ncclscope.engine.waits.engine_steps import counterpart, is_behind, is_idle
from ncclscope.engine.waits.noted import doing_in_common
from ncclscope.model import Communicator, Rank
from ncclscope.wording.names import comm_text
from ncclscope.wording.waits import Wait

if TYPE_CHECKING:
    from ncclscope.engine.case import Case
    from ncclscope.engine.waits.waits import PendingCall


@dataclass(frozen=True)
class Sides:
    """The two sides of a call that not all members have posted.

    Attributes:
        waiting: The ranks that wait in the call.
        absent: Members that never posted it and wait for nobody.
        diverging: The diverging side: ``waiting``, ``absent``, or empty where it is unknown.
        reason: The evidence of other groups; empty where numbers alone decide.
    """

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    diverging: str
    reason: str = ""

    @property
    def candidates(self) -> tuple[int, ...]:
        """The ranks of both sides."""
        return tuple(sorted({*self.waiting, *self.absent}))


def take_sides(case: Case, pending: PendingCall, absent: Sequence[int]) -> Sides:
    """Return both sides of a call that not all members have posted, and which one diverged.

    Args:
        case: The case.
        pending: The pending call of a rank that waits in it.
        absent: Members that have not posted it and wait for no rank, with or without a record.
    """
    waiting = waiting_in(case, pending)
    held_up = dependants(case, absent) | _posted(case, pending)
    by_number = ""
    if len(held_up) > len(absent):
        by_number = "absent"
    elif len(held_up) < sum(number in case.run.by_rank for number in absent):
        by_number = "waiting"  # ranks without a record may have posted it
    by_groups, reason = _same_role_elsewhere(case, pending)
    diverging = by_groups or by_number
    if not diverging and all(
        n in case.run.by_rank and is_idle(case.run.by_rank[n]) for n in absent
    ):
        diverging = "absent"  # the records show what they do: they wait for a request
    if not diverging and _are_behind(case, absent, pending):
        diverging, reason = "absent", Wait.ARE_BEHIND.of(absent)
    if not by_groups and _are_stopped(case, absent) and not _are_stopped(case, waiting):
        diverging = "absent"  # whatever the numbers, they cannot come before they are resumed
    here = [rank for n in absent if (rank := case.run.by_rank.get(n)) and not rank.exited]
    log = case.run.by_rank[pending.rank].logs[pending.comm.key]
    silent = all(_is_silent(rank, pending) for rank in here)
    held = is_due(log, pending.call) or (silent and doing_in_common(case.run, absent) is None)
    if diverging == "waiting" and not by_groups and here and held:
        diverging = ""  # the larger number may be held up, and make this call when it comes
    if by_groups == "waiting" and by_number == "absent":
        diverging, reason = "", ""  # most wait in a call that groups of the same role never post
    return Sides(waiting, tuple(sorted(absent)), diverging, reason)


def _is_silent(rank: Rank, pending: PendingCall) -> bool:
    """Return whether a rank has made no call since a call was posted, and waits for no request.

    Calls that are not recorded may be why it seems so.
    """
    if is_idle(rank) or uses_unrecorded(rank):
        return False
    last, since = rank.last_call(transfers=True), pending.call.time_ns
    return not (last and last.time_ns and since and last.time_ns > since)


def _are_stopped(case: Case, ranks: Sequence[int]) -> bool:
    """Return whether a signal has stopped the processes of all these ranks."""
    known = case.run.by_rank
    return all(n in known and known[n].details.get("stopped") for n in ranks)


def _are_behind(case: Case, ranks: Sequence[int], pending: PendingCall) -> bool:
    """Return whether these ranks have not begun the step of a call, or what it was made in."""
    known, other = case.run.by_rank, case.run.by_rank[pending.rank]
    return all(n in known and is_behind(case.run, known[n], other, pending.call) for n in ranks)


def waiting_in(case: Case, pending: PendingCall) -> tuple[int, ...]:
    """Return the ranks that wait in the same call."""
    here = pending.comm.key, pending.call.seq
    found = {one.rank for one in case.waits.all_pending if (one.comm.key, one.call.seq) == here}
    return tuple(sorted(found))


def is_stray(case: Case, pending: PendingCall) -> bool:
    """Return whether a call of a deadlock cycle is one that no other rank was going to make.

    It is of a kind that its communicator has never seen. A first call there shows that only if few
    of the members are in it: of a pair, the other one may have left it out.
    """
    if case.is_usual(pending):
        return False
    waiting = waiting_in(case, pending)
    return pending.call.seq > 1 or 2 * len(waiting) < len(pending.comm.ranks)


def dependants(case: Case, ranks: Iterable[int]) -> set[int]:
    """Return the ranks that wait for some others, directly or behind further ranks."""
    found: set[int] = set()
    reached = set(ranks)
    while True:
        more = {
            pending.rank
            for pending in case.waits.all_pending
            if pending.rank not in reached and reached.intersection(pending.awaited)
        }
        if not more:
            return found
        found |= more
        reached |= more


def _posted(case: Case, pending: PendingCall) -> set[int]:
    """Return the ranks that have posted a call, whether they wait in it or went past it."""
    logs = {rank.rank: rank.logs[pending.comm.key] for rank in case.run.members(pending.comm.key)}
    return {number for number, log in logs.items() if log.calls >= pending.call.seq}


def _same_role_elsewhere(case: Case, pending: PendingCall) -> tuple[str, str]:
    """Return the side that groups of the same kind identify as diverging, and their evidence."""
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
    return (
        ("absent", Wait.ALL_POSTED.of(names)) if posted else ("waiting", Wait.ALL_PASSED.of(names))
    )


def _place(case: Case, pending: PendingCall, rank: Rank, key: str) -> bool | None:
    """Return whether a rank posted its counterpart of a call; None where it is elsewhere."""
    own = case.run.by_rank[pending.rank]
    log = rank.logs[key]
    seq = counterpart(own, own.logs[pending.comm.key], pending.call.seq, rank, log)
    if seq is None or seq < log.first or seq > log.calls + 1:
        return None
    return seq <= log.calls


def _came_past(case: Case, pending: PendingCall, rank: Rank) -> bool:
    """Return whether a rank went past the point of a call without posting one.

    It has exited normally, waits in a later call for the ranks that wait in this one, or is idle
    without a pending call for as long as they have waited.
    """
    if rank.exited:
        return True
    own = [one for one in case.waits.all_pending if one.rank == rank.rank]
    if own:
        return any(pending.rank in one.absent for one in own)
    rests = case.all_quiet or case.longest_common_quiet([rank.rank]) is not None
    return rank.rank not in case.waits.heads and rests


def describe_sides(sides: Sides) -> str:
    """Say by which numbers one side diverged."""
    if sides.reason:
        return sides.reason
    if sides.diverging == "absent":
        return Wait.MORE_WAIT.of(sides.absent)
    return Wait.LARGER_NUMBER.of(waiting=sides.waiting, absent=sides.absent)


def describe_wait(case: Case, waiting: Sequence[int]) -> tuple[str, str]:
    """Say how ranks wait in a call, or waited until they gave it up: with their names, and after.

    Args:
        case: The case.
        waiting: Ranks that are in one pending call.
    """
    calls = case.waits.pending_calls
    found = [given_up_after(case.run.by_rank[number], calls[number].call) for number in waiting]
    known = [seconds for seconds in found if seconds is not None]
    if not known or len(known) < len(found):
        return Wait.NOW.of(waiting), Wait.AND_NOW.of(waiting)
    return Wait.THEN.of(waiting, min(known)), Wait.AND_THEN.of(min(known))
