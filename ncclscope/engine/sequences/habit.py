"""Predict a rank's next call from the calls that it repeats.

Programs repeat themselves: a step of a model posts the same calls as the step before, with
other sizes. Where the two members of a pair diverge and no other evidence exists, the member that
broke the common pattern is the suspect. That is inferred, not recorded, and verdicts say so.

A pattern is more than a row of equal calls: both calls in question must have been posted before.
And the stretch since the rarer of them must have been followed by the same call at least twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from ncclscope.engine.repairs.rounds import EVEN
from ncclscope.model import Call
from ncclscope.model.log import CallLog

PAST = 2048
"""Past calls that are searched."""

IN_STEP = 16
"""Preceding calls that two replicas must share to be at the same point of the program."""

_LATELY = 8
"""Times that a call has followed another one, after which it is expected to."""

Habit = tuple[str, str | None, str | None, int | None, bool]
"""Operation, type, reduction and root of a call, and whether a graph replayed it; no sizes."""


def habit_of(call: Call) -> Habit:
    """Return the attributes of a call that repeat from step to step."""
    return call.op, call.dtype, call.redop, call.root, call.replay is not None


What = TypeVar("What", bound=Hashable)


def expected_next(past: Sequence[What], one: What, other: What) -> What | None:
    """Return which of two calls is expected after others.

    Args:
        past: A rank's calls, oldest first, each as its repeating part: a habit, a call site.
        one: A call that may follow.
        other: Another call that may follow.

    Returns:
        The call that has followed the same stretch every time, at least twice; None where there
        is no such call, or it is neither of the two.
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
    """Return which of two calls is expected as number ``seq``, given the calls before it.

    Args:
        log: A rank's calls.
        seq: The number of the expected call.
        one: A call that may follow.
        other: Another call that may follow.
    """
    past = [habit_of(call) for call in log.span(max(log.first, seq - PAST), seq)]
    return expected_next(past, habit_of(one), habit_of(other))


def skipped_block(log: CallLog, seq: int, odd: Call) -> int:
    """Return how many calls a rank skips that posts a later call of its peers as number ``seq``.

    Calls that differ in their sizes alone are distinguished by their lines.

    Args:
        log: A peer's calls, with another call as number ``seq``.
        seq: The first differing call.
        odd: The call that the diverging rank posted instead.

    Returns:
        The number of calls between this point and a call like ``odd``, if it was the same each
        time before. 0 otherwise, or where ``odd`` comes from another line than it did, or is a
        variant of the peer's call with parts of other sizes.
    """
    calls = log.span(max(log.first, seq - PAST), seq + 1)
    if are_variants(odd, calls[-1]):
        return 0
    by_line = habit_of(odd) == habit_of(calls[-1])
    if by_line and None in (odd.site, calls[-1].site):
        return 0
    varies = len({call.root for call in calls if call.line == odd.line}) > 1
    if odd.site is not None and varies:
        # From one line calls come with one root after another.
        calls, odd = [replace(call, root=None) for call in calls], replace(odd, root=None)
    past, own = [known_by(call, by_line) for call in calls], known_by(odd, by_line)
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
            sites.add(calls[place].line)
    same = len(set(counts)) == 1
    return counts[0] if same and odd.line in sites else 0


def known_by(call: Call, by_line: bool = True) -> Hashable:
    """Return what calls of other sizes have in common, with their lines or without."""
    return (habit_of(call), call.line) if by_line else habit_of(call)


def usual_next(log: CallLog, seq: int) -> tuple[Habit, str | None] | None:
    """Return the repeating part and the line of the call that has followed one lately.

    Args:
        log: A rank's calls.
        seq: Number of a call.

    Returns:
        None where fewer than two such calls were followed by another, or not always by the same.
    """
    following = followers(log, seq)
    return following[0] if len(following) > 1 and len({*following}) == 1 else None


def followers(log: CallLog, seq: int) -> list[tuple[Habit, str | None]]:
    """Return the repeating parts and lines of the calls that have followed one lately."""
    calls = log.span(max(log.first, seq + 1 - PAST), seq + 1)
    past = [(habit_of(one), one.site) for one in calls]
    return [after for before, after in pairwise(past) if before == past[-1]][-_LATELY:]


def is_due(log: CallLog, call: Call) -> bool:
    """Return whether a call is the one that has followed the call before it lately.

    Members that have not posted it may be late, however many they are.

    Args:
        log: The log that holds the call.
        call: One of its calls.
    """
    return usual_next(log, call.seq - 1) == (habit_of(call), call.site)


def begins_round(log: CallLog, call: Call) -> bool:
    """Return whether a call may be the first of a round, as a rank without it has gone round.

    Whoever has not posted it may have left the loop, and whoever has may have gone round once more.

    Args:
        log: The rank's calls. Where the oldest are not kept, any call may be the first.
        call: The call of another rank.
    """
    past = [(habit_of(one), one.site) for one in log.span(log.first, min(log.calls + 1, PAST))]
    counts = Counter(past)
    first = next((one for one in past if counts[one] > 1), None)
    return log.first > 1 or first in (None, (habit_of(call), call.site))


def is_resized(odd: CallLog, peer: CallLog, seq: int) -> bool:
    """Return whether a rank went on after a call that has another size than its peers' last one.

    A smaller call may complete, so that the rank posts its usual next one, and is one call ahead.

    Args:
        odd: The diverging rank's calls.
        peer: A peer's calls.
        seq: The first differing call.

    Returns:
        Whether both calls come from one line, those of the peers had one size there lately, and
        the same call followed them that follows now.
    """
    if peer.calls != seq or odd.calls == seq:
        return False
    past = peer.span(max(peer.first, seq - PAST), seq + 1)
    here, mine = past[-1], odd.call(seq)
    line = habit_of(here), here.site
    if here.site is None or (habit_of(mine), mine.site) != line:
        return False
    pairs = [(one, after) for one, after in pairwise(past) if (habit_of(one), one.site) == line]
    usual = {(one.sign(), after.sign()) for one, after in pairs[-_LATELY:]}
    return len(pairs) > 1 and usual == {(here.sign(), odd.call(seq + 1).sign())}


def came_from_there(log: CallLog, seq: int, call: Call) -> bool:
    """Return whether a call comes from a line from which a peer posted such a call before.

    A lost call site may be any line.

    Args:
        log: A peer's calls.
        seq: Its calls before this number count.
        call: The call of another rank.
    """
    past = log.span(max(log.first, seq - PAST), seq)
    lines = {one.line for one in past if habit_of(one) == habit_of(call)}
    known = {line for line in lines if line[0] is not None}
    return call.site is None or known != lines or call.line in known


def are_variants(one: Call, other: Call) -> bool:
    """Return whether two calls are variants of one operation, only one with uneven sizes."""
    return EVEN.get(one.op, one.op) == EVEN.get(other.op, other.op) and one.op != other.op


def in_step(one: CallLog, other: CallLog, seq: int) -> bool:
    """Return whether two logs have the same calls before ``seq``, apart from sizes.

    Args:
        one: Calls on one communicator.
        other: Calls on a communicator of another replica.
        seq: A call number.
    """
    start = max(1, seq - IN_STEP, one.first, other.first)
    past = [[habit_of(call) for call in log.span(start, seq)] for log in (one, other)]
    return past[0] == past[1] and (bool(past[0]) or seq == 1)
