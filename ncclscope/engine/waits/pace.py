"""Usual pauses of a rank between two calls: a pause of usual length is no hang."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ncclscope.engine.case import Case
from ncclscope.engine.records import have_one_time
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.engine.waits.transfers import pairs
from ncclscope.model import Call
from ncclscope.model.log import CallLog, newest_of
from ncclscope.model.signature import P2P_OPS

_CALLS = 17
"""Newest calls whose distances count; earlier, the job may have run faster or slower."""
_OFTEN = 3
"""Long pauses that count as usual: compiling and loading happen once or twice."""
_BEFORE = 256
"""Newest calls among which those of the line are searched in which others wait."""
_IN_SUCCESSION = 2
"""Long pauses before that line that count as usual, if they are the newest ones before it."""
_FACTOR = 2.0
"""A rank is late when a pause exceeds this multiple of its earlier ones."""


def is_as_slow_as_ever(case: Case, number: int, key: str, *, transfers: bool = False) -> bool:
    """Return whether a rank's current pause is as long as many of its earlier ones.

    Or as its newest ones before calls of the line in which others wait. If the job was killed, one
    earlier wait of others in such a call suffices.

    Args:
        case: The case.
        number: The rank that others wait for.
        key: The communicator in whose call they wait.
        transfers: Whether to take its sends and receives there for calls as well.
    """
    rank = case.run.by_rank.get(number)
    log = None if rank is None else rank.logs.get(key)
    quiet = None if rank is None else case.still_seconds(rank)
    if log is None or quiet is None:
        return False
    if rank is not None and rank.alive and case.quiet is not None:
        quiet = max(quiet, case.quiet)  # a stopped process sends no heartbeats meanwhile
    calls = list(log.span(max(log.first, log.calls - _CALLS + 1), log.calls + 1))
    if rank is not None and transfers:
        calls += newest_of(rank.p2p.get(key, ()), _CALLS)
        calls = sorted(calls, key=lambda call: call.position)[-_CALLS:]
    times = [call.time_ns for call in calls if call.time_ns and call.replay is None]
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(times)]
    if sum(_FACTOR * gap >= quiet for gap in gaps) >= _OFTEN:
        return True
    if rank is not None and rank.alive is False and _was_awaited_for_longer(case, number, key):
        return True
    before = _pauses_before_line(log, case.logs(key).values())
    return len(before) == _IN_SUCCESSION and _FACTOR * min(before) >= quiet


def _pauses_before_line(log: CallLog, others: Iterable[CallLog]) -> list[float]:
    """Return a rank's newest pauses before calls of the line in which others wait, in seconds."""
    ahead = [one.call(log.calls + 1) for one in others if one.first <= log.calls + 1 <= one.calls]
    if not ahead:
        return []
    calls = log.span(max(log.first, log.calls - _BEFORE + 1), log.calls + 1)
    pauses = [
        (later.time_ns - earlier.time_ns) / 1e9
        for earlier, later in pairwise(calls)
        if (later.op, later.site) == (ahead[0].op, ahead[0].site)
        and earlier.time_ns
        and later.time_ns
    ]
    return pauses[-_IN_SUCCESSION:]


def _was_awaited_for_longer(case: Case, number: int, key: str) -> bool:
    """Return whether those that wait for a rank had waited for longer at the same lines before."""
    waits = [(rank, call) for rank, call in wait_graph(case).calls_for(number) if call.comm == key]
    seconds = [case.still_seconds(case.run.by_rank[rank]) for rank, _ in waits]
    longest = max((one for one in seconds if one is not None), default=math.inf)
    return any(
        before >= longest
        for rank, call in waits
        for before in _waits_before(case, rank, number, call)
    )


def _waits_before(case: Case, waiting: int, awaited: int, call: Call) -> Iterator[float]:
    """Yield for how long a rank had waited for others in earlier calls of a line, in seconds.

    Not in the first ones of the rank, before which it loads and compiles.
    """
    for own, others in _met(case, waiting, awaited, call):
        times = [one.time_ns for one in others if one.time_ns]
        if (own.op, own.site) == (call.op, call.site) and own.time_ns and times:
            yield (max(times) - own.time_ns) / 1e9


def _met(case: Case, waiting: int, awaited: int, call: Call) -> Iterator[tuple[Call, list[Call]]]:
    """Yield the earlier calls of a rank, each with those of others that it met."""
    rank = case.run.by_rank[waiting]
    if call.op in P2P_OPS:
        for pair in pairs(case):
            ends = pair.sender, pair.receiver
            if pair.comm.key == call.comm and {*ends} == {waiting, awaited}:
                halves = zip(pair.sends, pair.receives, strict=False)
                for sent, received in [*halves][1:]:
                    own, other = (sent, received) if ends[0] == waiting else (received, sent)
                    yield own, [other]
        return
    logs = case.logs(call.comm)
    known = [log for one, log in logs.items() if have_one_time(rank, case.run.by_rank[one])]
    for own in logs[waiting].span(max(logs[waiting].first, call.seq - _BEFORE), call.seq):
        if own.position < _CALLS:
            continue
        yield own, [log.call(own.seq) for log in known if log.first <= own.seq <= log.calls]
