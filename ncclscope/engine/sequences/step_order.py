"""Find the one rank that left the order of calls which its steps had before.

Training repeats the same calls in each step, on all communicators together. Where every rank did,
and one rank's newest step begins otherwise, that rank diverged. This is inferred, as with any
pattern. It singles out a rank where sequences of single communicators cannot: a skipped call
among equal ones, or transfers in the wrong order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ncclscope.model import Call, Rank
from ncclscope.model.log import newest_of

_BEFORE = 3
"""Steps with the same calls that make a pattern."""
_MOST_CALLS = 4096
"""Calls on one communicator in these steps; with more, nothing is concluded."""


class LeftOrder(NamedTuple):
    """Where one rank left the order of its steps before.

    Attributes:
        rank: Global rank.
        step: Number of the step.
        number: Number of the call within the step, from 1.
        expected: The call that was in this place in each step before.
        posted: The call of this step in this place; None where the step ended before it.
        skipped: Whether the calls go on as if `expected` alone had been left out.
    """

    rank: int
    step: int
    number: int
    expected: Call
    posted: Call | None
    skipped: bool


def left_order(ranks: Iterable[Rank], ended: Collection[int] = ()) -> LeftOrder | None:
    """Return the rank whose newest step was otherwise; None unless it is exactly one.

    Args:
        ranks: All ranks that may have diverged. Each has to have a pattern.
        ended: Those whose newest step has ended, so that it posts no more calls.
    """
    found = []
    for rank in ranks:
        steps = newest_of(rank.steps, _BEFORE + 1)
        calls = _calls_from(rank, steps[0].position) if len(steps) > _BEFORE else None
        if calls is None:
            return None
        begins = [step.position for step in steps[1:]]
        pattern, *others, current = _split(calls, begins)
        if not pattern or any(_shapes(pattern) != _shapes(other) for other in others):
            return None
        left = _compare(rank.rank, steps[-1].number, pattern, current)
        if left is not None and (left.posted is not None or rank.rank in ended):
            found.append(left)
    return found[0] if len(found) == 1 else None


def _calls_from(rank: Rank, position: int) -> list[Call] | None:
    """Return a rank's calls and transfers since a position; None if not all are kept."""
    found: list[Call] = []
    for log in rank.logs.values():
        start = max(log.first, log.calls + 1 - _MOST_CALLS)
        calls = log.span(start, log.calls + 1)
        if start > 1 and calls and calls[0].position >= position:
            return None
        found.extend(call for call in calls if call.position >= position)
    for transfers in rank.p2p.values():
        newest = newest_of(transfers, _MOST_CALLS)
        if (len(newest) == _MOST_CALLS or rank.lost) and newest[0].position >= position:
            return None
        found.extend(call for call in newest if call.position >= position)
    return sorted(found, key=lambda call: call.position)


def _split(calls: Sequence[Call], begins: Sequence[int]) -> list[list[Call]]:
    """Return the calls of each step, given where all steps but the first begin."""
    steps: list[list[Call]] = [[]]
    following = iter((*begins, None))
    end = next(following)
    for call in calls:
        while end is not None and call.position >= end:
            steps.append([])
            end = next(following)
        steps[-1].append(call)
    steps.extend([] for _ in range(len(begins) + 1 - len(steps)))
    return steps


def _shapes(calls: Iterable[Call]) -> list[tuple[object, ...]]:
    return [(call.comm, call.op, call.peer, call.shape) for call in calls]


def _compare(
    rank: int, step: int, pattern: Sequence[Call], current: Sequence[Call]
) -> LeftOrder | None:
    before, now = _shapes(pattern), _shapes(current)
    places = range(min(len(before), len(now)))
    place = next((place for place in places if before[place] != now[place]), None)
    if place is None and len(now) < len(before):
        return LeftOrder(rank, step, len(now) + 1, pattern[len(now)], None, skipped=True)
    if place is None:
        return None  # it is the pattern, or begins what has no pattern
    rest = now[place:]
    skipped = before[place + 1 : place + 1 + len(rest)] == rest
    return LeftOrder(rank, step, place + 1, pattern[place], current[place], skipped)
