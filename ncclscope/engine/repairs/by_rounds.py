"""Decide who diverged where no majority does: the ranks that depart from their own rounds.

Where ranks wait for each other, either may be wrong. If some of them did, up to here, what they had
done in each round before, and others left out a part of theirs, the latter are the cause, as long
as their repair releases all that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import as_consequence
from ncclscope.engine.repairs.departures import (
    Departure,
    begun_round,
    departures,
    keeps_to_rounds,
)
from ncclscope.engine.repairs.graph import WaitGraph
from ncclscope.engine.repairs.proof import Played, play, repair_of
from ncclscope.engine.repairs.repair import MOST_RANKS, Change
from ncclscope.engine.waits.endings import failed
from ncclscope.engine.waits.transfers import pairs
from ncclscope.model import Blame, Call, Communicator, Finding
from ncclscope.model.activities import RAISED
from ncclscope.model.log import made_before
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.names import plural, who_text
from ncclscope.wording.skips import Elsewhere, listed, there

_WAITS = ("not_joined", "p2p_mismatch")
"""Kinds of findings on ranks for which others wait."""
_OPEN = ("not_joined", "order_cycle")
"""Kinds of findings on calls that a rank skipped, or has in another order."""


def by_parts(
    graph: WaitGraph, findings: Sequence[Finding]
) -> Iterator[tuple[WaitGraph, Sequence[Finding]]]:
    """Yield the parts of a job that no wait joins, each with the findings on its ranks.

    All in one where a finding is on ranks of several parts, or on ranks of none.
    """
    about = [frozenset({*one.diverging_ranks, *one.candidate_ranks}) for one in findings]
    parts = [(part, part.awaited | part.waiting.keys()) for part in graph.parts]
    if any(sum(bool(ranks & own) for _, own in parts) != 1 for ranks in about):
        yield graph, findings
        return
    for part, own in parts:
        yield part, [one for one, ranks in zip(findings, about, strict=True) if ranks & own]


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
    sure = any(one.confidence == "certain" for one in causes)
    if not causes or sure or not graph.waiting or graph.unseen:
        return list(findings)
    found = _departures(case, graph, causes)
    kept = [one for one in causes if _is_kept(case, graph, one, found)]
    named = {rank for one in kept for rank in one.diverging_ranks}
    new = [one for rank, one in found.items() if rank not in named]
    if not named <= found.keys() or not new:
        return list(findings)
    if _held(case, graph, kept, found):
        return [_or_departed(one, found) if one in causes else one for one in findings]
    follows = [
        as_consequence(one)
        if one.role == "cause" and not any(one is other for other in kept)
        else one
        for one in findings
    ]
    dropped = [one for one in causes if not any(one is other for other in kept)] or causes
    alike: dict[object, list[Departure]] = {}
    for one in new:
        alike.setdefault(one.likeness, []).append(one)
    return [*(_finding(case, some, _like(some[0], dropped)) for some in alike.values()), *follows]


def were_answered(case: Case, numbers: Iterable[int]) -> frozenset[int]:
    """Return the ranks that wait within a round, an earlier call of which their peers answered.

    Then they are in the same round as these are, and have not gone round once more.
    """
    begun = {number: begun_round(case.run.by_rank[number]) for number in numbers}
    found = {
        number
        for number, calls in begun.items()
        for call in calls
        if call.op not in P2P_OPS
        for rank in case.run.members(call.comm)
        if rank.rank != number and rank.logs[call.comm].calls >= call.seq
    }
    if any(call.op in P2P_OPS for calls in begun.values() for call in calls):
        for pair in pairs(case):
            count = min(len(pair.sends), len(pair.receives))
            for number, halves in ((pair.sender, pair.sends), (pair.receiver, pair.receives)):
                if any(call in halves[:count] for call in begun.get(number, ())):
                    found.add(number)
    return frozenset(found)


def _or_departed(finding: Finding, found: Mapping[int, Departure]) -> Finding:
    """Return a finding on ranks that keep to their rounds, as open where others depart from theirs.

    Neither the repair of these nor that of those is known to be the only one.
    """
    if finding.kind not in _WAITS or not finding.diverging_ranks:
        return finding
    departed = sorted(found)
    undecided = finding.undecided(sorted({*finding.diverging_ranks, *departed}))
    return replace(
        undecided, inferred=(*undecided.inferred, Elsewhere.MAY_HAVE_DEPARTED.of(departed))
    )


def _departures(case: Case, graph: WaitGraph, causes: Sequence[Finding]) -> dict[int, Departure]:
    """Return the departures in a hang; none where most of its ranks depart from their rounds.

    A majority that departs together may have taken a branch that the others missed. In a large job
    the candidates of the causes are asked alone.
    """
    hanging = graph.waiting.keys() | graph.sinks
    asked = hanging
    if len(hanging) > MOST_RANKS:
        asked = hanging & {rank for one in causes for rank in one.candidate_ranks}
    if len(asked) > MOST_RANKS:
        return {}
    alive = [rank for rank in sorted(asked) if not failed(case.run.by_rank[rank])]
    found = {
        rank: one
        for rank, one in departures(case.run, alive).items()
        if _is_noticed(case, graph, one)
    }
    return {} if 2 * len(found) > len(hanging) else found


def _is_noticed(case: Case, graph: WaitGraph, one: Departure) -> bool:
    """Return whether a peer has posted what a rank left out, or lacks what it posted once more.

    Of transfers, whether one waits for the rank, or the rank in one. Where the peers have fewer
    calls than a rank, it has come round since it left some out.
    """
    edited = one.left_out or one.extra
    own, noticed = case.run.by_rank[one.rank].logs, False
    for key in {call.comm for call in edited if call.op not in P2P_OPS}:
        theirs = [rank.logs[key].calls for rank in case.run.members(key) if rank.rank != one.rank]
        most = max(theirs, default=0)
        if one.left_out and theirs and most < own[key].calls:
            return False
        noticed |= most >= _next_on(case, one, key) if one.left_out else most < own[key].calls
    transfers = [wait for wait in graph.waits if wait.is_transfer]
    return noticed or (
        any(call.op in P2P_OPS for call in edited)
        and any(one.rank in (wait.rank, *wait.awaited) for wait in transfers)
    )


def _is_kept(
    case: Case, graph: WaitGraph, finding: Finding, found: Mapping[int, Departure]
) -> bool:
    """Return whether a cause names ranks whose calls differ, or which wait for nobody.

    That a rank never joined a call follows from where it departed from its rounds. So do calls left
    out on one communicator, if it left out others, too. A rank that keeps to its rounds, and waits,
    is no cause.
    """
    ranks = {*finding.diverging_ranks}
    if departed := [one for rank, one in found.items() if rank in ranks]:
        if finding.odd is None:
            return False  # it names no call of the rank, and a departure does
        if all(one.is_early for one in departed):
            return False
        more = all(len(one.left_out) > max(1, finding.extent) for one in departed)
        if finding.kind == "extra_call":
            # A call too many explains as much, unless an exception explains those left out.
            return not (more and all(_raised_before(case, one) for one in departed))
        return finding.kind != "not_joined" and not (finding.kind == "missing_call" and more)
    if finding.kind not in _WAITS:
        return bool(ranks)
    waiting = [case.run.by_rank[rank] for rank in ranks & graph.waiting.keys()]
    return bool(ranks) and not (len(waiting) == len(ranks) and all(map(keeps_to_rounds, waiting)))


def _raised_before(case: Case, one: Departure) -> bool:
    """Return whether a rank noted an exception within the round in which it left out calls."""
    activity = case.run.by_rank[one.rank].activities.get(RAISED)
    if activity is None or not one.left_out:
        return False
    return (one.left_out[0].time_ns or 0) < activity.since_ns <= (one.call.time_ns or 0)


def _like(one: Departure, causes: Sequence[Finding]) -> Finding:
    """Return the cause that has a rank among its candidates, or any."""
    own = [cause for cause in causes if one.rank in cause.candidate_ranks]
    return own[0] if own else causes[0]


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
    for edited in (one.left_out, one.extra):
        for key in dict.fromkeys(call.comm for call in edited if call.op not in P2P_OPS):
            peers = [rank for rank in case.run.members(key) if rank.rank != one.rank]
            if not peers:
                continue
            like = max(peers, key=lambda rank: rank.logs[key].calls)
            count = sum(call.comm == key for call in edited)
            place = _next_on(case, one, key)
            if edited is one.extra:
                changes.append(Change(key, place, count, 0, like.rank, place))
            elif (more := min(count, like.logs[key].calls + 1 - place)) > 0:
                changes.append(Change(key, place, 0, more, like.rank, place))
    return tuple(changes)


def _next_on(case: Case, one: Departure, key: str) -> int:
    """Return the number of the next call on a communicator where a rank departs."""
    return made_before(case.run.by_rank[one.rank].logs[key], one.call.position) + 1


def _finding(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that depart from their rounds in the same way.

    Args:
        case: The case.
        departed: Where they do.
        instead_of: The finding that left open whether they diverged, or what they did.
    """
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    if one.is_replaced:
        return _replaced(case, departed, instead_of)
    if one.is_early:
        return _early(case, departed, instead_of)
    edited = one.left_out or one.extra
    kind, code, before = "extra_call", Elsewhere.ONCE_MORE, Elsewhere.ROUNDS_BEFORE_ONCE
    if one.left_out:
        kind = instead_of.kind if instead_of.kind in _OPEN else "missing_call"
        code = Elsewhere.LEFT_OUT_ONE if len(edited) == 1 else Elsewhere.LEFT_OUT
        before = Elsewhere.ROUNDS_BEFORE
    first, (comm, came) = edited[0], _comms(case, edited[0], one.call)
    others = {*instead_of.candidate_ranks, *instead_of.diverging_ranks} - {*ranks}
    keeping = [rank for rank in sorted(others) if keeps_to_rounds(case.run.by_rank[rank])]
    shown = _first_posted(case, one, ranks)
    return _of_departed(
        departed,
        instead_of,
        kind="p2p_mismatch" if first.op in P2P_OPS else kind,
        summary=code.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            count=plural(len(edited), "call"),
            begins="" if len(ranks) == 1 else f"rank {one.rank} ",
            first=there(comm, first),
            came=there(came, one.call),
        ),
        comm=comm if shown is None else case.run.communicators[shown.comm],
        seq=None if shown is None else shown.seq,
        peers=first if shown is None else shown,
        inferred=(
            before.of(one.rank, listed(case.run, edited)),
            *([Elsewhere.KEEP.of(keeping)] if keeping else []),
        ),
        extent=len(edited),
        round=one.left_out,
    )


def _of_departed(departed: Sequence[Departure], instead_of: Finding, **what: Any) -> Finding:
    """Return a finding about ranks that depart from their rounds, with what is said of them."""
    return Finding(
        blame=Blame.on(one.rank for one in departed),
        odd=departed[0].call,
        odd_is="call",
        role="cause",
        analyzer="accounting",
        evidence=instead_of.evidence,
        hangs=instead_of.hangs,
        **what,
    )


def _replaced(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that posted a call elsewhere than in each round before."""
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    expected, posted = one.left_out[0], one.call
    is_transfer = posted.op in P2P_OPS
    before, now = _comms(case, expected, posted)
    return _of_departed(
        departed,
        instead_of,
        kind="p2p_mismatch" if is_transfer else "comm_swap",
        summary=Elsewhere.OTHER_TARGET.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            now=there(now, posted),
            usual=expected,
            before=before,
        ),
        comm=now,
        seq=None if is_transfer else posted.seq,
        peers=None if is_transfer else _first_posted(case, one, ranks),
        inferred=(Elsewhere.KEPT.of(one.rank),),
        extent=1,
    )


def _early(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that posted a call before another one, and always after it."""
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    first, posted = one.left_out[0], one.call
    comm, here = _comms(case, first, posted)
    shown = _first_posted(case, one, ranks)
    return _of_departed(
        departed,
        instead_of,
        kind="order_cycle",
        summary=Elsewhere.EARLY.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            now=there(here, posted),
            usual=first,
            there=comm,
        ),
        comm=comm,
        seq=None if shown is None else shown.seq,
        peers=first if shown is None else shown,
        inferred=(Elsewhere.EARLY_AS_WELL.of(),),
        extent=len(one.left_out),
    )


def _comms(case: Case, *calls: Call) -> list[Communicator]:
    return [case.run.communicators[call.comm] for call in calls]


def _first_posted(case: Case, one: Departure, ranks: Sequence[int]) -> Call | None:
    """Return the first call in question that a peer has posted, as the peer posted it.

    Where no peer has posted any, it is the first of the rank itself; None for a transfer.
    """
    edited = one.left_out or one.extra
    if edited[0].op in P2P_OPS:
        return None
    for key in dict.fromkeys(call.comm for call in edited if call.op not in P2P_OPS):
        seq = _next_on(case, one, key)
        for peer in case.run.members(key):
            log = peer.logs[key]
            if peer.rank not in ranks and log.first <= seq <= log.calls:
                return log.call(seq)
    return replace(edited[0], seq=_next_on(case, one, edited[0].comm))
