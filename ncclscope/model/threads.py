"""The order that a rank's calls have by its program.

A thread posts its calls in the order of the program. Two threads go on independently of each
other: which of them posted first is no evidence, and a call of one holds up none of the other. A
call whose thread is not known is ordered among all. Threads beyond those that a record can number
share one number: a call with it has no known order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ncclscope.model.call import Call

if TYPE_CHECKING:
    from ncclscope.model.log import CallLog

SEVERAL = 63
"""The number that several threads share, from the 63rd one on."""
NEWEST = 1024
"""Newest calls of a log whose threads are read."""


def is_one_thread(one: int, other: int) -> bool:
    """Return whether two calls of a rank are known to have an order, by their threads' numbers."""
    return SEVERAL not in (one, other) and (one == other or not one or not other)


def is_any_thread(one: int, others: Collection[int]) -> bool:
    """Return whether a thread may be one of some others; without any, it may."""
    return not others or any(is_one_thread(one, other) for other in others)


def precedes(one: Call, other: Call) -> bool:
    """Return whether a rank's program posts a call before another one."""
    return one.position < other.position and is_one_thread(one.thread, other.thread)


def holds_up(one: Call, other: Call) -> bool:
    """Return whether a call precedes another one, and is not started together with it."""
    together = one.group is not None and one.group == other.group
    return precedes(one, other) and not together


def first_of_threads(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return those calls of a rank that none of the others precedes, the oldest first."""
    found: list[Call] = []
    for call in sorted(calls, key=lambda call: call.position):
        if not any(is_one_thread(one.thread, call.thread) for one in found):
            found.append(call)
    return tuple(found)


def are_ordered(logs: Iterable[CallLog]) -> bool:
    """Return whether one thread of a rank posted all newest calls of some logs."""
    threads = set().union(*map(threads_of, logs)) - {0}
    return len(threads) < 2 and SEVERAL not in threads


def threads_of(log: CallLog) -> frozenset[int]:
    """Return the threads that posted the newest calls of a log."""
    return frozenset(log.threads(max(log.first, log.calls - NEWEST), log.calls + 1))
