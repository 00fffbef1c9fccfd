"""How many calls a rank posts on a communicator in each step of the engine.

Where it is the same number in every step, a step with another one tells which of two ranks
put a call in, or left one out. That is a conclusion and no record, as with any habit.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ncclscope.analysis.habit import PAST
from ncclscope.logs import CallLog
from ncclscope.model import Call, Rank, Step

__all__ = ["broke_rhythm", "step_of"]

_LEAST = 3
"""Steps with the same number of calls that make a rhythm."""


def step_of(rank: Rank, call: Call) -> Step | None:
    """Returns the step that a call belongs to; None where none was recorded."""
    place = bisect_right(rank.steps, call.position, key=lambda step: step.position)
    return rank.steps[place - 1] if place else None


def broke_rhythm(one: tuple[Rank, CallLog], other: tuple[Rank, CallLog], seq: int) -> list[bool]:
    """Tells which of two ranks posted more or fewer calls in a step than both had in each before.

    Args:
        one: A rank and its calls on the communicator.
        other: The other rank and its calls.
        seq: Where the two part.

    Returns:
        For each of them, whether it is that one; for neither where that cannot be told.
    """
    counts = [_counts(rank, log, seq) for rank, log in (one, other)]
    parted = [_number(rank, log, seq) for rank, log in (one, other)]
    if None in parted:
        return [False, False]
    step = min(number for number in parted if number is not None)
    usual = {count for each in counts for number, count in each.items() if number < step}
    before = [sum(1 for number in each if number < step) for each in counts]
    if len(usual) != 1 or min(before) < _LEAST or any(step not in each for each in counts):
        return [False, False]
    (count,) = usual
    broke = [each[step] != count for each in counts]
    return broke if broke[0] != broke[1] else [False, False]


def _counts(rank: Rank, log: CallLog, seq: int) -> dict[int, int]:
    """Returns the calls in each step that is kept whole, around a call."""
    start, stop = max(log.first, seq - PAST), min(log.calls + 1, seq + PAST)
    positions = np.array(log.positions(start, stop), np.int64)
    steps = [step for step in rank.steps if step.position <= positions[-1]]
    if not steps:
        return {}
    begins = np.array([step.position for step in steps], np.int64)
    edges = np.searchsorted(positions, begins)
    found = zip(steps, np.diff(edges).tolist(), strict=False)
    # Of the step that the first of these calls belongs to, some may stand before; the last
    # step has no successor here, and may go on.
    whole = [(step, count) for step, count in found if start == 1 or step.position > positions[0]]
    return {step.number: count for step, count in whole}


def _number(rank: Rank, log: CallLog, seq: int) -> int | None:
    step = step_of(rank, log.call(seq)) if log.first <= seq <= log.calls else None
    return None if step is None else step.number
