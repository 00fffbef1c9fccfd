"""Usual pauses of a rank between two calls: a pause of usual length is no hang."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ncclscope.engine.case import Case
from ncclscope.model.log import CallLog, newest_of

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

    Or as its newest ones before calls of the line in which others wait.

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
