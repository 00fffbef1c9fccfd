"""Usual pauses of a rank between two calls: a pause of usual length is no hang."""

from __future__ import annotations

from itertools import pairwise

from ncclscope.engine.case import Case
from ncclscope.model.log import newest_of

_CALLS = 17
"""Newest calls whose distances count; earlier, the job may have run faster or slower."""
_OFTEN = 3
"""Long pauses that count as usual: compiling and loading happen once or twice."""
_FACTOR = 2.0
"""A rank is late when a pause exceeds this multiple of its earlier ones."""


def is_as_slow_as_ever(case: Case, number: int, key: str, *, transfers: bool = False) -> bool:
    """Return whether a rank's current pause is as long as many of its earlier ones.

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
    return sum(_FACTOR * gap >= quiet for gap in gaps) >= _OFTEN
