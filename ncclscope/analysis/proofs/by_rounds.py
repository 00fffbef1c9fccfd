"""Decide who diverged where no majority does: the ranks that depart from their own rounds.

Where ranks wait for each other, either may be wrong. If some of them did, up to here, what they had
done in each round before, and others left out a part of theirs, the latter are the cause, as long
as their repair releases all that waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclscope.analysis.case import Case
from ncclscope.analysis.precedence import as_consequence
from ncclscope.analysis.proofs.proof import Played, play, repair_of
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
)
from ncclscope.engine.departures import Departure, departures
from ncclscope.engine.graph import WaitGraph
from ncclscope.engine.repair import Change
from ncclscope.model import Call, Finding
from ncclscope.model.signature import P2P_OPS

_OPEN = ("not_joined", "order_cycle")
"""Kinds of findings on calls that a rank skipped, or has in another order."""


def decided_by_rounds(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the ranks that depart from their rounds as causes.

    Args:
        case: The case.
        graph: Its wait graph.
        findings: The findings, whose causes may leave open which ranks diverged.

    Returns:
        The findings as they are, where each cause names its ranks, or where the repair of those
        ranks leaves others waiting.
    """
    causes = [one for one in findings if one.role == "cause"]
    open_causes = [one for one in causes if not one.diverging_ranks]
    candidates = {rank for one in open_causes for rank in one.candidate_ranks}
    if not candidates or not graph.waiting or candidates & graph.unseen:
        return list(findings)
    found = {rank: one for rank, one in departures(case.run).items() if rank in candidates}
    # A majority that departs together may have taken a branch that the others missed.
    if not found or 2 * len(found) > len(candidates) or _held(case, graph, causes, found):
        return list(findings)
    follows = [
        as_consequence(one) if any(one is other for other in open_causes) else one
        for one in findings
    ]
    named = [
        _finding(case, one, next(other for other in open_causes if rank in other.candidate_ranks))
        for rank, one in found.items()
    ]
    return [*named, *follows]


def _held(
    case: Case, graph: WaitGraph, causes: Sequence[Finding], found: Mapping[int, Departure]
) -> frozenset[int]:
    """Return the ranks that wait although departures, and causes with ranks, are repaired."""
    named = {rank for one in causes for rank in one.diverging_ranks}
    changes = repair_of(case, [one for one in case.differences if named.issuperset(one.odd)])
    changes |= {rank: own for rank, one in found.items() if (own := repair_of_departure(case, one))}
    ranks = frozenset({*named, *found})
    played = play(case, graph, ranks, changes)
    if played is None:
        played = Played(frozenset(graph.waiting), graph, ranks, frozenset())
    return played.held()


def repair_of_departure(case: Case, one: Departure) -> tuple[Change, ...]:
    """Return how the calls of a rank become those of its rounds; transfers are as recorded."""
    changes = []
    edited = one.left_out or one.extra
    for key in dict.fromkeys(call.comm for call in edited if call.op not in P2P_OPS):
        logs = case.logs(key)
        count = sum(call.comm == key for call in edited)
        place = _next_on(case, one, key)
        like = max(
            (rank for rank in logs if rank != one.rank),
            key=lambda rank: logs[rank].calls,
            default=None,
        )
        if like is None:
            continue
        if one.extra:
            changes.append(Change(key, place, count, 0, like, place))
        elif (more := min(count, logs[like].calls + 1 - place)) > 0:
            changes.append(Change(key, place, 0, more, like, place))
    return tuple(changes)


def _next_on(case: Case, one: Departure, key: str) -> int:
    """Return the number of the next call on a communicator where a rank departs."""
    log = case.logs(key)[one.rank]
    return (
        sum(call.position < one.call.position for call in log.span(log.first, log.calls + 1))
        + log.first
    )


def _finding(case: Case, one: Departure, left_open: Finding) -> Finding:
    """Return a finding about a rank that departs from its rounds.

    Args:
        case: The case.
        one: Where it does.
        left_open: The finding that names the rank as a candidate.
    """
    edited = one.left_out or one.extra
    first, count = edited[0], plural(len(edited), "call")
    transfer = first.op in P2P_OPS
    comm, came = (case.run.communicators[call.comm] for call in (first, one.call))
    who = sentence(rank_text(case.run, one.rank))
    them = "it" if len(edited) == 1 else "them"
    instead = f"{call_text(one.call)} on {comm_text(came)}{site_text(one.call)}"
    if one.left_out:
        did = f"left out {count}"
        later = f"or would have posted {them} later, in the opposite order"
        then = f"came to {instead}: it skipped {them}, {later}"
        kind = left_open.kind if left_open.kind in _OPEN else "missing_call"
        times = ""
    else:
        did, then, kind, times = (
            f"posted {count} once more",
            f"waits in {instead}",
            "extra_call",
            " once",
        )
    others = [rank for rank in left_open.candidate_ranks if rank != one.rank]
    seq = None if transfer else _next_on(case, one, first.comm)
    return Finding(
        kind="p2p_mismatch" if transfer else kind,
        summary=(
            f"{who} {did}, from {call_text(first)} on {comm_text(comm)}{site_text(first)} on, and "
            f"{then}."
        ),
        comm=comm,
        seq=seq,
        diverging_ranks=(one.rank,),
        odd=one.call,
        odd_is="call",
        peers=_posted(case, one.rank, first, seq),
        confidence="likely",
        role="cause",
        analyzer="accounting",
        evidence=left_open.evidence,
        inferred=(
            f"rank {one.rank} posted {them}{times} in each of the rounds before",
            f"{ranks_text(others)} posted what they had posted in the rounds before",
        ),
        extent=len(edited),
        round=one.left_out,
        hangs=left_open.hangs,
    )


def _posted(case: Case, rank: int, first: Call, seq: int | None) -> Call:
    """Return a peer's call with a number, where there is one; else the call of a round before."""
    if seq is not None:
        for other, log in case.logs(first.comm).items():
            if other != rank and log.first <= seq <= log.calls:
                return log.call(seq)
    return first
