"""The order in which a rank of a deadlock cycle has posted the calls of two communicators.

Where the records do not show who diverged, a rank that posts the two in another order than each
time before may have. That is inferred: its peers may have changed theirs together.
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.sequences.habit import PAST, Habit, expected_next, habit_of
from ncclscope.analysis.waits.waits import PendingCall
from ncclscope.analysis.wording import comm_text
from ncclscope.model import Call, Rank


def broken_orders(case: Case, cycle: tuple[int, ...]) -> Iterable[str]:
    """Say which ranks of a cycle wait in a call before which they had always posted another.

    Args:
        case: The job.
        cycle: Ranks, of which each waits for the next one, and the last for the first.
    """
    for place, number in enumerate(cycle):
        here = case.waits.pending_calls[number]
        due = case.waits.pending_calls[cycle[place - 1]]
        one, other = ((wait.comm.key, habit_of(wait.call)) for wait in (here, due))
        rank = case.run.by_rank[number]
        if expected_next(_past(rank, here, due), one, other) == other:
            yield (
                f"rank {number} went to {comm_text(here.comm)} before {comm_text(due.comm)}, and "
                f"each time until then it was the other way round"
            )


def _past(rank: Rank, here: PendingCall, due: PendingCall) -> list[tuple[str, Habit]]:
    """Return a rank's calls on two communicators before the one in which it waits."""
    calls = [
        call
        for key in (here.comm.key, due.comm.key)
        for call in _newest(rank, key)
        if call.position < here.call.position
    ]
    calls.sort(key=lambda call: call.position)
    return [(call.comm, habit_of(call)) for call in calls]


def _newest(rank: Rank, key: str) -> Iterable[Call]:
    log = rank.logs.get(key)
    return () if log is None else log.span(max(log.first, log.calls - PAST), log.calls + 1)
