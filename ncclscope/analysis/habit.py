"""What a rank usually posts next.

Programs repeat themselves: a step of a model posts the same calls as the step before, on
other sizes. Where two ranks part and nothing else tells them apart, the one that kept to its
own rhythm is the peer, and the one that broke it is odd. That is a conclusion and no record,
and verdicts that rest on it say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, CallLog

__all__ = ["Habit", "expected_next", "follows", "kept_habit"]

PAST = 2048
"""Calls of the past that are looked through."""
LONGEST = 256
"""Longest stretch of them that is compared."""
SHORTEST = 3
"""Fewer equal calls in a row are no rhythm."""

Habit = tuple[str, str | None, str | None, int | None]
"""A call without its sizes, which change from step to step."""


def habit_of(call: Call) -> Habit:
    """Returns what of a call repeats itself."""
    return call.op, call.dtype, call.redop, call.root


def expected_next(past: Sequence[Habit]) -> Habit | None:
    """Returns what followed, each time before, after the longest stretch like the last one.

    Args:
        past: A rank's calls, oldest first.

    Returns:
        None when there is no such stretch, or not always the same after it.
    """
    longest, following = SHORTEST - 1, set()
    for place in range(len(past) - 1, 0, -1):
        length = 0
        while (
            length < LONGEST
            and length < place
            and past[place - 1 - length] == past[len(past) - 1 - length]
        ):
            length += 1
        if length > longest:
            longest, following = length, {past[place]}
        elif length == longest:
            following.add(past[place])
    return following.pop() if len(following) == 1 else None


def kept_habit(log: CallLog, seq: int) -> bool | None:
    """Whether the call number ``seq`` is what the rank usually posts after those before it.

    Returns:
        None when its past shows no rhythm.
    """
    past = [habit_of(call) for call in log.span(max(log.first, seq - PAST), seq)]
    usual = expected_next(past)
    return None if usual is None else usual == habit_of(log.call(seq))


def follows(log: CallLog, seq: int, call: Call) -> bool:
    """Whether ``call`` is of another kind than the call number ``seq``, and usually follows it."""
    if habit_of(call) == habit_of(log.call(seq)):
        return False
    past = [habit_of(kept) for kept in log.span(max(log.first, seq - PAST), seq + 1)]
    return expected_next(past) == habit_of(call)
