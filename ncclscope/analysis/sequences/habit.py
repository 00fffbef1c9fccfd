"""What a rank usually posts next.

Programs repeat themselves: a step of a model posts the same calls as the step before, on
other sizes. Where the two members of a pair part and nothing else tells them apart, the one
that kept to the rhythm of both is the peer, and the one that broke it is odd. That is a
conclusion and no record, and verdicts that rest on it say so.

A rhythm is more than a row of equal calls: both calls in question must have been posted
before, and whatever has been posted since the rarer of them was last must have been followed
by the same call at least twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from ncclscope.model import Call
from ncclscope.model.log import CallLog

__all__ = [
    "IN_STEP",
    "PAST",
    "Habit",
    "are_variants",
    "expected_next",
    "follows",
    "habit_of",
    "in_step",
    "skipped_block",
]

PAST = 2048
"""Calls of the past that are looked through."""

IN_STEP = 16
"""Calls before one in question that two replicas must share to be at the same place."""

_VARIANTS = ({"all_gather", "all_gatherv"}, {"reduce_scatter", "reduce_scatterv"})

Habit = tuple[str, str | None, str | None, int | None, bool]
"""A call without its sizes, which change from step to step; whether a graph replayed it."""


def habit_of(call: Call) -> Habit:
    """Returns what of a call repeats itself."""
    return call.op, call.dtype, call.redop, call.root, call.replay is not None


What = TypeVar("What", bound=Hashable)


def expected_next(past: Sequence[What], one: What, other: What) -> What | None:
    """Tells which of two calls is to be expected after others.

    Args:
        past: A rank's calls, oldest first, each by what repeats itself: a habit, a call site.
        one: What may follow.
        other: What may follow instead.

    Returns:
        The call that has followed on the same stretch at least twice, and each time; None
        when there is none, or it is neither of the two.
    """
    counts = {habit: past.count(habit) for habit in (one, other)}
    if one == other or not all(counts.values()):
        return None
    rarer = min(counts, key=lambda habit: counts[habit])
    start = max(place for place, habit in enumerate(past) if habit == rarer)
    stretch = list(past[start:])
    length = len(stretch)
    following = [
        past[place + length]
        for place in range(start)
        if place + length < len(past) and list(past[place : place + length]) == stretch
    ]
    if len(following) < 2 or len(set(following)) > 1 or following[0] not in counts:
        return None
    return following[0]


def follows(log: CallLog, seq: int, one: Call, other: Call) -> Habit | None:
    """Returns which of two calls usually stands as number ``seq``, after those before it."""
    past = [habit_of(call) for call in log.span(max(log.first, seq - PAST), seq)]
    return expected_next(past, habit_of(one), habit_of(other))


def skipped_block(log: CallLog, seq: int, odd: Call) -> int:
    """Tell how many calls a rank leaves out that posts as number ``seq`` what comes later.

    Args:
        log: A peer's calls, of which number ``seq`` is another one.
        seq: The call.
        odd: What the rank posted in its place.

    Returns:
        The calls that have stood between this place and such a call, at least twice and as many
        each time; 0 where that is not so, where ``odd`` comes from another line than it did, or
        where it is the same operation with parts of other sizes.
    """
    calls = log.span(max(log.first, seq - PAST), seq + 1)
    if are_variants(odd, calls[-1]):
        return 0
    past, own = [habit_of(call) for call in calls], habit_of(odd)
    here = len(past) - 1
    last = max((place for place in range(here) if past[place] == own), default=-1)
    stretch = past[last : here + 1]
    if last < 0 or past[here] == own:
        return 0
    counts, sites = [], set()
    for start in range(last):
        after = start + len(stretch)
        if past[start:after] == stretch and own in past[after:here]:
            place = past.index(own, after)
            counts.append(place - after + 1)
            sites.add(calls[place].site)
    same = len(counts) > 1 and len(set(counts)) == 1
    return counts[0] if same and odd.site in sites else 0


def are_variants(one: Call, other: Call) -> bool:
    """Whether two calls are one operation, whose parts have one size in one of them only."""
    return {one.op, other.op} in _VARIANTS


def in_step(one: CallLog, other: CallLog, seq: int) -> bool:
    """Whether two communicators came to their calls ``seq`` by the same calls but for sizes."""
    start = max(1, seq - IN_STEP, one.first, other.first)
    past = [[habit_of(call) for call in log.span(start, seq)] for log in (one, other)]
    return past[0] == past[1] and (bool(past[0]) or seq == 1)
