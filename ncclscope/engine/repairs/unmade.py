"""Name the creation of a group that ranks left out, where others wait for them in that group.

A rank that has not made a group cannot come to a call on it. If it went on to another call, what it
did not do is the creation, which its peers recorded before their first call on the group. A rank
that waits nowhere may not have come to the creation yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import WAITS
from ncclscope.engine.waits.waits import PendingCall
from ncclscope.model import Call, Finding
from ncclscope.wording.names import who_text
from ncclscope.wording.skips import Elsewhere, there


def with_unmade_groups(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, with a creation left out in place of a call that follows from it.

    Args:
        case: The case.
        findings: The findings.
    """
    return [_made_by_others(case, one) or one for one in findings]


def _made_by_others(case: Case, finding: Finding) -> Finding | None:
    """Return a finding on the group that its ranks have not made; None where they have."""
    ranks = finding.diverging_ranks
    is_wait = finding.kind in (*WAITS, "missing_call") and not finding.aligned
    if finding.role != "cause" or not is_wait or not ranks:
        return None
    if not {*ranks} <= case.waits.pending_calls.keys():
        return None
    for pending in case.waits.all_pending:
        if not {*ranks} <= {*pending.comm.ranks} or pending.rank in ranks:
            continue
        made = _creation(case, pending)
        if made is None or not all(_lacks(case, rank, pending, made) for rank in ranks):
            continue
        comm = case.run.communicators[made.comm]
        waiting = [one.rank for one in case.waits.all_pending if one.comm.key == pending.comm.key]
        return replace(
            finding,
            kind="missing_call",
            summary=Elsewhere.NOT_MADE.of(
                who=who_text(case.run, ranks),
                group=pending.comm,
                waiting=waiting,
                made=made,
                where=there(comm, made),
            ),
            comm=comm,
            seq=made.seq,
            peers=made,
            inferred=(*finding.inferred, Elsewhere.NOT_MADE_YET.of(ranks)),
            extent=1,
        )
    return None


def _creation(case: Case, pending: PendingCall) -> Call | None:
    """Return the creation by which a waiting rank made the communicator of its call."""
    before = [
        call
        for log in case.run.by_rank[pending.rank].logs.values()
        if log.communicator.creates_groups
        for call in log.span(log.first, log.calls + 1)
        if call.sizes
        and {*call.sizes} == {*pending.comm.ranks}
        and call.position < pending.call.position
    ]
    return max(before, key=lambda call: call.position, default=None)


def _lacks(case: Case, number: int, pending: PendingCall, made: Call) -> bool:
    """Return whether a rank posted neither the creation of a communicator nor a call on it."""
    rank = case.run.by_rank.get(number)
    if rank is None or rank.lost or pending.comm.key in rank.logs:
        return False
    log = rank.logs.get(made.comm)
    return log is None or log.calls < made.seq
