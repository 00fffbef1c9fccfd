"""Find ranks in a timed sleep: nothing else ends it, and the rank goes on by itself after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ncclscope.engine.processes.motion import SOON_SECONDS, read_motions
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.noted import lasting
from ncclscope.model import Rank
from ncclscope.model.activities import ASLEEP, CPU

if TYPE_CHECKING:
    from ncclscope.engine.case import Case


def wakes_of(case: Case, numbers: Iterable[int]) -> dict[int, float]:
    """Return in how many seconds the ranks wake that are in one timed sleep, by rank.

    A sleep counts if it is one of at least half the time for which the rank had posted nothing when
    it began: one that polls has slept many times by then.

    Args:
        case: The case.
        numbers: The ranks.
    """
    found = {rank: _wakes_in(case, rank) for rank in numbers}
    return {rank: seconds for rank, seconds in found.items() if seconds is not None}


def _wakes_in(case: Case, number: int) -> float | None:
    rank = case.run.by_rank.get(number)
    if rank is None or not may_be_late(case, rank):
        return None
    snapshot = case.run.snapshot
    motion = None if snapshot is None else read_motions(snapshot).get(number)
    is_seen = motion is not None and motion.condition in ("moving", "still")
    if motion is not None and is_seen and (motion.wakes is None or CPU not in rank.activities):
        return motion.wakes  # it is awake, or no heartbeat shows for how long it has slept
    sleep, seen = lasting(rank, ASLEEP), rank.last_seen_ns
    if sleep is None or seen is None or is_idle(rank):
        return None
    begun, length = sleep.activity.since_ns, sleep.activity.number / 1000
    before = (begun - _begin_of_silence(rank)) / 1e9
    left = length - (seen - begun) / 1e9
    return max(left, 0.0) if left <= SOON_SECONDS and 2 * length >= before else None


def _begin_of_silence(rank: Rank) -> int:
    last = rank.last_call(transfers=True)
    return (last.time_ns if last is not None else rank.started_ns) or 0


def may_be_late(case: Case, rank: Rank) -> bool:
    """Return whether a rank is neither in a call nor stopped or taken down after an exception."""
    if rank.rank in case.waits.pending_calls or rank.details.get("stopped"):
        return False
    return not rank.details.get("ended_with")
