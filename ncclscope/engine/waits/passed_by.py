"""Ranks that went on past a call in which others wait.

While some ranks go on, a job is not at rest, and a call that one of them left out waits unnoticed:
a handle that nobody waits for, or a barrier whose last member serves another group for ever. A
thread that is late, such as one that writes a checkpoint, leaves the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ncclscope.engine.case import Case
from ncclscope.engine.waits.waits import reports_completion
from ncclscope.model import Call, Communicator, Rank, State
from ncclscope.model.threads import precedes
from ncclscope.wording.names import call_on
from ncclscope.wording.waits import Wait

_ASKED = 64
"""Ranks that have posted a call of which one has to wait in it."""


def passed_by(case: Case) -> Iterable[str]:
    """Say in which calls ranks have waited for long, while a missing member made later calls."""
    for key, comm in case.run.communicators.items():
        counts = {rank.rank: rank.logs[key].calls for rank in case.run.members(key)}
        if len(counts) < len(comm.ranks):  # others may have posted nothing there
            counts |= dict.fromkeys(
                (n for n in comm.ranks if n in case.run.by_rank and n not in counts), 0
            )
        if comm.creates_groups or len(set(counts.values())) < 2:
            continue
        seq = min(counts.values()) + 1
        posted = [number for number, count in counts.items() if count >= seq]
        # In a large job that moves, some ranks are always ahead: a few show that none waits.
        if not any(_waits(case, number, key, seq) for number in posted[:_ASKED]):
            continue
        waiting = [number for number in posted if _waits(case, number, key, seq)]
        passed = {
            number: reason
            for number, count in counts.items()
            if count < seq
            and (reason := _reason(case, comm, seq, case.run.by_rank[number], waiting))
        }
        if passed:
            call = case.run.by_rank[waiting[0]].logs[key].call(seq)
            reason = next(iter(passed.values()))
            where = call_on(comm, call)
            yield Wait.PASSED_BY.of(waiting=waiting, where=where, passed=passed, reason=reason)


def _waits(case: Case, number: int, key: str, seq: int) -> bool:
    """Return whether a rank has been in a call for as long as in a hang."""
    rank = case.run.by_rank[number]
    log = rank.logs[key]
    call = log.call(seq) if log.first <= seq else None
    if call is None or call.state is not State.SCHEDULED or not reports_completion(log, call):
        return False
    if call.time_ns is None or rank.last_seen_ns is None:
        return False
    limit = case.live_stall_seconds if rank.alive else case.stall_seconds
    return rank.last_seen_ns - call.time_ns >= limit * 1e9


def _reason(case: Case, comm: Communicator, seq: int, rank: Rank, waiting: Iterable[int]) -> str:
    for number in waiting:
        other = case.run.by_rank[number]
        call = other.logs[comm.key].call(seq)
        if reason := came_past(other, call, rank, {}):
            return reason
    return ""


def came_past(waiting: Rank, pending: Call, rank: Rank, differing: Mapping[str, int]) -> str:
    """Say which later call of a waiting rank another one went on to; empty where there is none.

    Args:
        waiting: The rank that waits.
        pending: The call in which it waits.
        rank: The other one.
        differing: First difference of communicators, beyond which calls are ignored.
    """
    for key, log in rank.logs.items():
        theirs = waiting.logs.get(key)
        if theirs is None or key == pending.comm:
            continue
        last = min(log.calls, theirs.calls, differing.get(key, log.calls))
        if last < max(log.first, theirs.first):
            continue
        if precedes(pending, theirs.call(last)):
            return Wait.WENT_ON.of(
                rank=rank.rank, seq=last, comm=theirs.communicator, waiting=waiting.rank
            )
    return ""
