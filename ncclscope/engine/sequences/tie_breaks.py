"""Identify the diverging side where a majority of the members does not.

Communicators with the same role in other replicas are evidence. A pattern is not: if one of two
ranks did what both had always done at this point, the other one is merely a suspect. So is a
majority that broke a pattern which the other ranks kept.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from ncclscope.engine.sequences.habit import (
    PAST,
    expected_next,
    follows,
    habit_of,
    in_step,
    is_due,
    known_by,
    usual_next,
)
from ncclscope.engine.sequences.step_rhythm import broke_rhythm
from ncclscope.model import Call

if TYPE_CHECKING:
    from ncclscope.engine.records import Records
    from ncclscope.engine.sequences.align import Divergence
    from ncclscope.model.log import CallLog


def majority_of_kind(records: Records, divergence: Divergence) -> tuple[int, ...] | None:
    """Return the group whose call equals that of most communicators of the same kind.

    Replicas of a model run the same program on different data. Signatures are compared first;
    where they decide nothing, single parameters except the size. A replica that reached this
    number by other calls, such as a step without tokens, is at another point and is ignored.
    """
    calls = []
    logs = records.logs(divergence.comm.key)
    own = logs[divergence.groups[0][0]]
    for key, comm in records.run.communicators.items():
        if key == divergence.comm.key or not comm.kind or comm.kind != divergence.comm.kind:
            continue
        by_call = {
            log.signatures(divergence.seq, divergence.seq + 1)[0]: log
            for log in records.logs(key).values()
            if log.first <= divergence.seq <= log.calls
        }
        if len(by_call) == 1:
            log = next(iter(by_call.values()))
            if in_step(own, log, divergence.seq):
                calls.append(log.call(divergence.seq))
    for aspect in ("signature", "op", "captured", "dtype", "redop", "root"):
        common = Counter(getattr(call, aspect) for call in calls).most_common(2)
        if not common or (len(common) > 1 and common[0][1] == common[1][1]):
            continue
        posted = [
            getattr(logs[group[0]].call(divergence.seq), aspect) for group in divergence.groups
        ]
        if aspect == "redop" and None in posted:
            continue  # a reduction that was not recorded is no difference
        same = [
            group
            for group, value in zip(divergence.groups, posted, strict=True)
            if value == common[0][0]
        ]
        if len(same) == 1:
            return same[0]
    return None


def suspect_of_pair(records: Records, divergence: Divergence) -> tuple[tuple[int, ...], str] | None:
    """Return the member of a pair that broke a common pattern, and the kind of pattern."""
    if len(divergence.groups) != 2 or len(divergence.comm.ranks) != 2:
        return None
    logs = [records.logs(divergence.comm.key)[group[0]] for group in divergence.groups]
    by_habit = _broke_habit(logs, divergence.seq)
    if by_habit is not None:
        return divergence.groups[by_habit], "habit"
    by_steps = _broke_steps(records, divergence, logs)
    return None if by_steps is None else (divergence.groups[by_steps], "steps")


def broke_pattern(records: Records, divergence: Divergence) -> bool:
    """Return whether a majority broke the pattern of calls that the other members kept.

    Both may be the fault: the call that the majority skipped, or the branch that the others missed.
    The pattern is of lines, too, so that a call from a new line belongs to none.
    """
    if len(divergence.groups) != 2 or divergence.absent:
        return False
    logs = [records.logs(divergence.comm.key)[group[0]] for group in divergence.groups]
    broke, kept = (known_by(log.call(divergence.seq)) for log in logs)
    start = max(divergence.seq - PAST, *(log.first for log in logs))
    pasts = [[known_by(call) for call in log.span(start, divergence.seq)] for log in logs]
    return pasts[0] == pasts[1] and expected_next(pasts[0], broke, kept) == kept


def is_new_there(records: Records, divergence: Divergence, odd: tuple[int, ...]) -> bool:
    """Return whether a majority left the order in which all posted their calls, and others kept it.

    Its call is one that none had posted, or the one that came next after the others' each time.

    Args:
        records: The records.
        divergence: The divergence, with a majority.
        odd: A smaller group, whose call may be the one that all have posted next lately.
    """
    logs = records.logs(divergence.comm.key)
    own, common = logs[odd[0]], logs[divergence.majority[0]]
    seq = divergence.seq
    if not own.first <= seq <= own.calls or not common.first <= seq <= common.calls:
        return False
    call, new = own.call(seq), common.call(seq)
    if known_by(call) == known_by(new) or not is_due(own, call):
        return False
    past = own.span(max(own.first, seq - PAST), seq)
    is_new = all(known_by(one) != known_by(new) for one in past)
    return is_new or usual_next(own, seq) == (habit_of(new), new.site)


def is_outvoted(records: Records, divergence: Divergence, odd: tuple[int, ...]) -> bool:
    """Return whether nothing but a vote of two ranks shows that another one diverged.

    The two may have made the same mistake, as one wrong setting for both. What all have done at
    this point before, or what other replicas did, may show that they have not.

    Args:
        records: The records.
        divergence: The divergence, with a majority.
        odd: The outvoted ranks.
    """
    if len(divergence.majority) > 2 or majority_of_kind(records, divergence) == divergence.majority:
        return False
    logs, seq = records.logs(divergence.comm.key), divergence.seq
    own, common = logs[odd[0]], logs[divergence.majority[0]]
    past = common.span(max(common.first, seq - PAST), seq)
    after = [this for last, this in pairwise(past) if known_by(last) == known_by(past[-1])]
    did, expected = own.call(seq), common.call(seq)
    for alike in (known_by, Call.sign):  # sizes may change from round to round
        if alike(did) != alike(expected):
            usual = {alike(call) for call in after}
            return alike(expected) not in usual or alike(did) in usual
    return True


def _broke_habit(logs: list[CallLog], seq: int) -> int | None:
    """Return which of two did not post the call that both have always posted at this point."""
    one, other = (log.call(seq) for log in logs)
    expected = {follows(log, seq, one, other) for log in logs}
    if len(expected) != 1 or None in expected:
        return None
    return 1 if habit_of(one) in expected else 0


def _broke_steps(records: Records, divergence: Divergence, logs: list[CallLog]) -> int | None:
    """Return which of two posted another number of calls in this step than in all before.

    A call of a kind that is new to both may belong to this step alone: then the rank with the
    usual number may be the one that skipped it.
    """
    past = logs[0].span(max(logs[0].first, divergence.seq - PAST), divergence.seq)
    known = {habit_of(call) for call in past}
    if any(habit_of(log.call(divergence.seq)) not in known for log in logs):
        return None
    one, other = (
        (records.run.by_rank[group[0]], log)
        for group, log in zip(divergence.groups, logs, strict=True)
    )
    broke = broke_rhythm(one, other, divergence.seq)
    return broke.index(True) if any(broke) else None
