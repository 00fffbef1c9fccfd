"""Change what a rank posted into what its peers posted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import CallLog, made_before
from ncclscope.model.memory import ListLog

BEFORE = 4
"""Calls before the first change that are kept."""
MOST = 512
"""Calls from the first change on up to which a history is repaired."""
MOST_RANKS = 8
"""Ranks of a job whose calls are played again: those around the change are read of each rank."""
COMMS = 64
"""Communicators by whose calls the place of a call in a rank's stream is found."""


@dataclass(frozen=True)
class Change:
    """Calls of a rank that are dropped, and calls that it posts as a peer did.

    Attributes:
        comm: Key of the communicator.
        seq: Number of the rank's first call in question; those after it move up or down.
        drop: Number of its calls that are dropped.
        add: Number of calls that it posts instead.
        like: The peer whose calls these are.
        start: Number of the first of them there.
    """

    comm: str
    seq: int
    drop: int
    add: int
    like: int
    start: int

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON has it."""
        return asdict(self)


def repaired(run: Run, changes: Mapping[int, Sequence[Change]]) -> Run | None:
    """Return a run in which ranks posted what their peers did.

    What they posted besides is as recorded, and gets the numbers that it has then.

    Args:
        run: The run.
        changes: The changes of each rank, those on a communicator in order.

    Returns:
        None where calls in question are overwritten, or too many, and for more than MOST_RANKS.
    """
    if changes and len(run.ranks) > MOST_RANKS:
        return None
    ranks = []
    for rank in run.ranks:
        logs, device = dict(rank.logs), dict(rank.device)
        own = changes.get(rank.rank, ())
        # Calls that were dropped do not count among those behind which others are added.
        for key in dict.fromkeys(
            one.comm for one in sorted(own, key=lambda one: one.add > one.drop)
        ):
            there = replace(rank, logs=logs)
            log = _changed(run, there, key, [one for one in own if one.comm == key])
            if log is None:
                return None
            logs[key] = log
            device.pop(key, None)
        ranks.append(replace(rank, logs=logs, device=device))
    return replace(run, ranks=tuple(ranks))


def _changed(run: Run, rank: Rank, key: str, changes: Sequence[Change]) -> CallLog | None:
    log = rank.logs[key]
    start = max(log.first, changes[0].seq - BEFORE)
    if start > changes[0].seq or log.calls - start > MOST:
        return None
    own, calls, place = log.span(start, log.calls + 1), list[Call](), start
    for one in changes:
        peer = run.by_rank[one.like].logs[key]
        if one.start < peer.first or one.add > MOST:
            return None
        calls += own[place - start : one.seq - start]
        around = [*calls[-1:], *own[one.seq - start :][:1]]
        dropped = own[one.seq - start :][: one.drop]
        for number, call in enumerate(peer.span(one.start, one.start + one.add)):
            if dropped:
                calls.append(_posted_instead(dropped[min(number, len(dropped) - 1)], call))
            else:
                at = _as_far_as(rank, run.by_rank[one.like], call.position)
                calls.append(_posted_between(around, call, at))
        place = one.seq + one.drop
    calls += own[place - start :]
    numbered = [replace(call, seq=number) for number, call in enumerate(calls, start)]
    return ListLog(log.communicator, numbered, made=start - 1)


def _as_far_as(rank: Rank, peer: Rank, position: int) -> int:
    """Return the position of a rank's last call that its peer posted before a position."""
    found = 0
    for key in islice((key for key in rank.logs if key in peer.logs), COMMS):
        log = rank.logs[key]
        made = min(made_before(peer.logs[key], position), log.calls)
        if made >= log.first:
            found = max(found, log.positions(made, made + 1)[0])
    return found


def _posted_between(around: Sequence[Call], call: Call, position: int) -> Call:
    """Return a peer's call as a rank posts it between two of its calls, near a position."""
    if not around:
        return replace(call, position=position, thread=0)
    low, high = around[0].position, around[-1].position
    within = min(max(position, low), max(low, high) if len(around) > 1 else max(low, position))
    return replace(_posted_instead(around[-1], call), position=within)


def _posted_instead(own: Call, call: Call) -> Call:
    """Return a peer's call as a rank posts it instead of its own call."""
    return replace(
        call,
        position=own.position,
        time_ns=own.time_ns,
        state=own.state,
        thread=own.thread,
        group=own.group,
    )
