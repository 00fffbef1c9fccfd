"""What else says which side is odd, where no majority does.

Communicators that play the same part in other replicas are evidence. A rhythm is not: that one
of two ranks did what both had always done at this place makes the other one suspect, no more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ncclscope.analysis.sequences.habit import PAST, follows, habit_of, in_step
from ncclscope.analysis.sequences.step_rhythm import broke_rhythm

if TYPE_CHECKING:
    from ncclscope.analysis.records import Records
    from ncclscope.analysis.sequences.align import Divergence
    from ncclscope.model.log import CallLog

__all__ = ["suspect_of_pair", "usual_group"]


def usual_group(records: Records, divergence: Divergence) -> tuple[int, ...] | None:
    """Return the group that did what most communicators of the same kind did at this call.

    Replicas of a model run the same program, though not on the same data: signatures
    are compared first, and single parameters but the size where those decide nothing.
    A replica that has come to this number in another way, such as by a step without
    tokens, is at another place of the program and tells nothing.
    """
    calls = []
    logs = records.logs(divergence.comm.key)
    own = logs[divergence.groups[0][0]]
    for key, comm in records.run.communicators.items():
        if key == divergence.comm.key or not comm.kind or comm.kind != divergence.comm.kind:
            continue
        posted = {
            log.signatures(divergence.seq, divergence.seq + 1)[0]: log
            for log in records.logs(key).values()
            if log.first <= divergence.seq <= log.calls
        }
        if len(posted) == 1:
            log = next(iter(posted.values()))
            if in_step(own, log, divergence.seq):
                calls.append(log.call(divergence.seq))
    for aspect in ("signature", "op", "captured", "dtype", "redop", "root"):
        usual = Counter(getattr(call, aspect) for call in calls).most_common(2)
        if not usual or (len(usual) > 1 and usual[0][1] == usual[1][1]):
            continue
        same = [
            group
            for group in divergence.groups
            if getattr(logs[group[0]].call(divergence.seq), aspect) == usual[0][0]
        ]
        if len(same) == 1:
            return same[0]
    return None


def suspect_of_pair(records: Records, divergence: Divergence) -> tuple[tuple[int, ...], str] | None:
    """Return the member of a pair that broke a rhythm which both had kept, and which one."""
    if len(divergence.groups) != 2 or len(divergence.comm.ranks) != 2:
        return None
    logs = [records.logs(divergence.comm.key)[group[0]] for group in divergence.groups]
    by_habit = _broke_habit(logs, divergence.seq)
    if by_habit is not None:
        return divergence.groups[by_habit], "habit"
    by_steps = _broke_steps(records, divergence, logs)
    return None if by_steps is None else (divergence.groups[by_steps], "steps")


def _broke_habit(logs: list[CallLog], seq: int) -> int | None:
    """Which of two did not do what both have always done at this place."""
    one, other = (log.call(seq) for log in logs)
    usual = {follows(log, seq, one, other) for log in logs}
    if len(usual) != 1 or None in usual:
        return None
    return 1 if habit_of(one) in usual else 0


def _broke_steps(records: Records, divergence: Divergence, logs: list[CallLog]) -> int | None:
    """Which of two posted more or fewer calls in this step than ever before.

    A call of a kind that is new to both may belong to this step alone, and be missing on the
    rank that kept to its number.
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
