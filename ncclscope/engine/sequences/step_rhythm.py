"""Count the calls that a rank posts on a communicator in each step of the engine.

Two ranks diverged in the step in which they posted different numbers of equal calls. Where the
number was the same in every step before, the rank with another number inserted or skipped a call.
That is inferred, not recorded, as with any pattern.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from ncclscope.engine.sequences.align import Edit
from ncclscope.engine.sequences.habit import PAST
from ncclscope.engine.sequences.shifts import Shift
from ncclscope.model import Call, Rank, Step
from ncclscope.model.log import CallLog
from ncclscope.wording.differences import Item

_LEAST = 3
"""Steps with the same number of calls that make a pattern."""


def step_of(rank: Rank, call: Call) -> Step | None:
    """Return the step that a call belongs to; None where none was recorded."""
    place = bisect_right(rank.steps, call.position, key=lambda step: step.position)
    return rank.steps[place - 1] if place else None


def broke_rhythm(one: tuple[Rank, CallLog], other: tuple[Rank, CallLog], seq: int) -> list[bool]:
    """Return which of two ranks posted another number of calls in a step than both had before.

    Args:
        one: A rank and its calls on the communicator.
        other: The other rank and its calls.
        seq: The call at which the two diverge.

    Returns:
        For each of the two, whether it broke the pattern; False for both where that is unknown.
    """
    whole = [_whole_steps(rank, log, seq) for rank, log in (one, other)]
    diverged = [_number(rank, log, seq) for rank, log in (one, other)]
    if None in diverged:
        return [False, False]
    step = min(number for number in diverged if number is not None)
    before = [[each[number].calls for number in each if number < step] for each in whole]
    if len({*before[0], *before[1]}) != 1 or min(map(len, before)) < _LEAST:
        return [False, False]
    if any(step not in each for each in whole):
        return [False, False]
    broke = [each[step].calls != before[0][0] for each in whole]
    return broke if broke[0] != broke[1] else [False, False]


def steps_apart(odd: tuple[Rank, CallLog], peer: tuple[Rank, CallLog]) -> Shift | None:
    """Find the steps in which one rank posted another number of equal calls than the other.

    Args:
        odd: A rank and its calls on the communicator.
        peer: The other rank and its calls.

    Returns:
        The first of these steps, with the others as :attr:`Shift.later`; None where there is
        none, where the ranks were not in step before, or where the numbers balance out.
    """
    last = min(odd[1].calls, peer[1].calls)
    mine, theirs = (_whole_steps(rank, log, last) for rank, log in (odd, peer))
    numbers = [number for number in mine if number in theirs]
    apart = [n for n, number in enumerate(numbers) if mine[number].calls != theirs[number].calls]
    if (
        not apart
        or apart[0] < _LEAST
        or mine[numbers[apart[0]]].seq != theirs[numbers[apart[0]]].seq
    ):
        return None
    found: list[Edit] = []
    seq = inserted = deleted = 0
    for place in apart:
        step, other = mine[numbers[place]], theirs[numbers[place]]
        common = min(step.calls, other.calls)
        seq = seq or step.seq + common
        start, peer_start = step.seq + common - seq, other.seq + common - seq
        if found:
            found[-1] = found[-1]._replace(matched=start - found[-1].start - inserted)
        inserted, deleted = step.calls - common, other.calls - common
        found.append(Edit(start, inserted, peer_start, deleted, 0))
    end = min(
        odd[1].calls + 1 - seq - found[-1].start - inserted,
        peer[1].calls + 1 - seq - found[-1].peer_start - deleted,
    )
    found[-1] = found[-1]._replace(matched=end)
    if not sum(edit.inserted - edit.deleted for edit in found):
        return None  # both posted the same calls, only in different steps
    first = found[0]
    return Shift(
        seq, True, first.deleted, first.inserted, first.matched, Item.STEPS, tuple(found[1:])
    )


class _Whole(NamedTuple):
    """The calls of a step: number of the first, how many."""

    seq: int
    calls: int


def _whole_steps(rank: Rank, log: CallLog, seq: int) -> dict[int, _Whole]:
    """Return the steps around a call whose calls are all kept, in order, by step number."""
    start, stop = max(log.first, seq - PAST), min(log.calls + 1, seq + PAST)
    positions = np.array(log.positions(start, stop), np.int64)
    steps = [step for step in rank.steps if len(positions) and step.position <= positions[-1]]
    begins = np.array([step.position for step in steps], np.int64)
    places = np.searchsorted(positions, begins).tolist()
    # The first step may have earlier calls, and the last step, without a successor, later ones.
    return {
        step.number: _Whole(start + place, following - place)
        for step, place, following in zip(steps, places, places[1:], strict=False)
        if start == 1 or place
    }


def _number(rank: Rank, log: CallLog, seq: int) -> int | None:
    step = step_of(rank, log.call(seq)) if log.first <= seq <= log.calls else None
    return None if step is None else step.number
