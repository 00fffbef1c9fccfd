"""Choose the cause among several findings: join and drop some, then order them by time.

The names of kinds and analyzers have no influence. An analyzer that describes the same calls more
precisely than another lists the other's kind in ``refines``, and its finding replaces the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cmp_to_key, partial

from ncclscope.engine.case import Case
from ncclscope.engine.registry import Analyzer
from ncclscope.engine.waits.order import Moment
from ncclscope.model import Blame, Finding
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.ends import End, Ends
from ncclscope.wording.names import numbered
from ncclscope.wording.waits import Wait

HANG_KINDS = frozenset(
    {"not_joined", "dead_rank", "order_cycle", "stalled", "init_stalled", "transfer_stalled"}
)
"""Kinds of findings in which sequences agree as far as they go, and a rank waits forever."""

WAITS = frozenset({"not_joined", "extra_call", "dead_rank"})
"""Kinds of findings about ranks that have not joined a call."""

LATE = "late"
"""The kind of a finding about ranks at work for which others wait."""

_CONFIDENCE = {"certain": 0, "likely": 1, "ambiguous": 2}


def settle(case: Case, claims: Sequence[tuple[Analyzer, Finding]]) -> list[Finding]:
    """Return the claimed findings without refined ones, and with echoes as consequences."""
    found = _without_accounted(_without_echoes(drop_refined(claims)))
    return _without_survived(_without_held_up(case, found))


def as_consequence(finding: Finding) -> Finding:
    """Return a finding as a consequence, if it was a cause."""
    return replace(finding, role="consequence") if finding.role == "cause" else finding


def in_order(case: Case, found: Iterable[Finding]) -> list[Finding]:
    """Return findings with the root cause first.

    Findings of equal rank stay in the order in which the analyzers ran.
    """
    by_time = sorted(found, key=cmp_to_key(partial(_compare, case)))
    return sorted(by_time, key=_weight)


def is_hang(finding: Finding) -> bool:
    """Return whether the sequences agree as far as they go, and ranks are stuck.

    A call in which few ranks wait and which most have not posted is extra, but no sequence
    differs yet.
    """
    if finding.hangs is not None:
        return finding.hangs
    alone = finding.peers is None or finding.comm is None  # findings from stacks have no comm
    return finding.kind in HANG_KINDS or (finding.kind == "extra_call" and alone)


def drop_refined(claims: Sequence[tuple[Analyzer, Finding]]) -> list[Finding]:
    """Return the findings that no other one refines, directly or through a third.

    Where analyzers refine each other, keep all of their findings.
    """
    refined = {
        place: [other for other, claim in enumerate(claims) if _refines(claims[place], claim)]
        for place, (analyzer, _) in enumerate(claims)
        if _kinds_refined(analyzer)
    }
    below = {other for others in refined.values() for other in others}
    frontier = [place for place in refined if place not in below]
    dropped: set[int] = set()
    while frontier:
        new = set(refined.get(frontier.pop(), ())) - dropped
        dropped |= new
        frontier += new
    return [found for place, (_, found) in enumerate(claims) if place not in dropped]


def _kinds_refined(analyzer: Analyzer) -> tuple[str, ...]:
    return tuple(getattr(analyzer, "refines", ()))


def _refines(claim: tuple[Analyzer, Finding], against: tuple[Analyzer, Finding]) -> bool:
    """Return whether a finding describes the calls of another one more precisely.

    Both must concern the same ranks, and the other must not end before this one's first call.
    """
    (analyzer, finding), (other_analyzer, other) = claim, against
    if analyzer is other_analyzer or other.kind not in _kinds_refined(analyzer):
        return False
    ranks = _ranks(finding), _ranks(other)
    if all(ranks) and not ranks[0] & ranks[1]:
        return False
    if finding.comm is None or other.comm is None or None in (finding.seq, other.seq):
        return finding.comm == other.comm and all(ranks)
    start, first = finding.seq or 0, other.seq or 0
    if (other.comm.key, first) in finding.accounts_for:
        return True
    if finding.comm.key != other.comm.key:
        return False
    return first == start or (all(ranks) and first + max(1, other.extent) >= start)


def _ranks(finding: Finding) -> set[int]:
    return {*(finding.diverging_ranks or finding.candidate_ranks)}


def _without_echoes(found: Sequence[Finding]) -> list[Finding]:
    """Return findings with each call that hangs due to mismatched parameters as consequence."""
    unfit = {
        (finding.comm.key, finding.seq)
        for finding in found
        if finding.role == "cause" and not is_hang(finding) and finding.comm is not None
    }
    return [
        replace(finding, role="consequence")
        if finding.kind == "stalled"
        and finding.comm is not None
        and (finding.comm.key, finding.seq) in unfit
        else finding
        for finding in found
    ]


def _without_accounted(found: Sequence[Finding]) -> list[Finding]:
    """Return findings on calls as consequences, where one on no call accounts for these.

    It is about a setting of the rendezvous, or a process that gives ranks their work.
    """
    accounted = {call for one in found if one.comm is None for call in one.accounts_for}
    return [
        replace(finding, role="consequence")
        if finding.comm is not None and (finding.comm.key, finding.seq) in accounted
        else finding
        for finding in found
    ]


def _without_held_up(case: Case, found: Sequence[Finding]) -> list[Finding]:
    """Return findings on calls that a stuck transfer keeps ranks from as consequences.

    Also those on the transfers of a rank that is late, as a finding on a collective says.
    """
    causes = [finding for finding in found if finding.role == "cause"]
    held_up = {
        rank
        for finding in causes
        # Findings from stacks have no communicator, and know no second half.
        if finding.kind == "stalled" and finding.comm is not None and _is_transfer(finding)
        for rank in finding.candidate_ranks
    }
    named = [
        (_is_transfer(finding), set(finding.diverging_ranks))
        for finding in causes
        if finding.kind in ("not_joined", "dead_rank") and finding.comm is not None
    ]
    late = set().union(*(ranks for in_transfer, ranks in named if not in_transfer))
    missed = _missed(case, held_up)
    undecided = _missed(case, set().union(*(ranks for in_transfer, ranks in named if in_transfer)))
    return [
        replace(finding, role="consequence")
        if finding.role == "cause"
        and finding.comm is not None
        and (
            (
                finding.kind in ("not_joined", "extra_call")
                and (finding.comm.key, finding.seq)
                in (missed if finding.diverging_ranks else missed | undecided)
            )
            or _lacks_a_half_of(finding, held_up)
            or _is_late(finding, late)
        )
        else finding
        for finding in found
    ]


def _missed(case: Case, ranks: set[int]) -> set[tuple[str, int | None]]:
    """Return the pending calls that none but some ranks have not posted."""
    return {
        (pending.comm.key, pending.call.seq)
        for pending in case.waits.all_pending
        if pending.absent and ranks.issuperset(pending.absent)
    }


def _lacks_a_half_of(finding: Finding, held_up: set[int]) -> bool:
    """Return whether a transfer has no other half since one of the two ranks is held up."""
    if finding.kind != "p2p_mismatch" or finding.peers is not None or finding.diverging_ranks:
        return False
    return bool(held_up.intersection(finding.candidate_ranks))


def _is_late(finding: Finding, late: set[int]) -> bool:
    """Return whether a transfer has no other half yet since its peer is late for all its calls."""
    if not finding.hangs or finding.comm is None:
        return False
    if _is_transfer(finding):
        return late.issuperset(finding.diverging_ranks or {-1})
    peer = None if finding.odd is None or finding.odd.op not in P2P_OPS else finding.odd.peer
    return peer is not None and finding.comm.ranks[peer] in late


def _is_transfer(finding: Finding) -> bool:
    return finding.peers is not None and finding.peers.op in P2P_OPS


def _without_survived(found: Sequence[Finding]) -> list[Finding]:
    """Return findings with survived ones as latent, where another finding is the cause."""
    if not any(finding.role == "cause" and not finding.survived for finding in found):
        return list(found)
    return [
        replace(finding, role="latent") if finding.role == "cause" and finding.survived else finding
        for finding in found
    ]


def _weight(finding: Finding) -> tuple[int, int, int]:
    """Return a sort key: causes first, differences before waits, certain before ambiguous.

    Who is late hangs nobody, and comes last of the causes.
    """
    return (
        0 if finding.role == "cause" else 1,
        2 if finding.kind == LATE else 1 if is_hang(finding) else 0,
        _CONFIDENCE[finding.confidence] // 2,
    )


def _compare(case: Case, one: Finding, other: Finding) -> int:
    """Compare two findings by time; without calls, by their lowest rank."""
    moments = [
        Moment(
            finding.comm.key,
            finding.seq,
            min(finding.diverging_ranks or finding.candidate_ranks, default=-1),
            finding.odd,
        )
        for finding in (one, other)
        if finding.comm is not None and finding.seq is not None
    ]
    if len(moments) == 2 and (found := case.order.compare(*moments)):
        return found
    ranks = [finding.diverging_ranks or finding.candidate_ranks for finding in (one, other)]
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


_DOUBTS = ("ambiguous", "likely", "certain")


def as_one(case: Case, found: Sequence[Finding]) -> list[Finding]:
    """Return findings, where those on ranks that peers miss in one call are one, as of a node."""
    groups: dict[tuple[str, int], list[Finding]] = {}
    for one in found:
        if one.comm is None or one.role != "cause" or len(one.diverging_ranks) != 1:
            continue
        rank = case.run.by_rank.get(one.diverging_ranks[0])
        if rank is not None and case.how_it_ended(rank) is not None:
            groups.setdefault((one.comm.key, one.seq or 0), []).append(one)
    merged = {id(group[0]): _joined(case, group) for group in groups.values() if len(group) > 1}
    dropped = {id(one) for group in groups.values() for one in group[1:]}
    return [merged.get(id(one), one) for one in found if id(one) not in dropped]


def _joined(case: Case, group: Sequence[Finding]) -> Finding:
    """Return one finding on several ranks that are gone, and that the same ranks wait for."""
    ranks = tuple(sorted(one.diverging_ranks[0] for one in group))
    ends = {n: end for n in ranks if (end := case.how_it_ended(case.run.by_rank[n])) is not None}
    how = "; ".join(f"rank {number}: {end}" for number, end in ends.items())
    if all(end.code is End.NOT_NOTED for end in ends.values()):
        how = str(Ends.NONE_NOTED)
    first = group[0]
    waiting = [n for n in case.waits.pending_calls if n not in ranks and _is_in(case, n, first)]
    return replace(
        first,
        summary=Ends.TOGETHER.of(ranks=ranks, how=how, wait=wait_text(first, waiting, "them")),
        blame=Blame.on(ranks, min((one.confidence for one in group), key=_DOUBTS.index)),
        evidence=tuple(dict.fromkeys(line for one in group for line in one.evidence)),
        inferred=tuple(dict.fromkeys(line for one in group for line in one.inferred)),
    )


def wait_text(finding: Finding, waiting: Sequence[int], whom: str) -> str:
    """Return that ranks wait for others in the call of a finding."""
    where = numbered(finding.comm, finding.seq, finding.peers)
    return Wait.FOR.of(waiting=waiting, whom=whom, where=where)


def _is_in(case: Case, number: int, finding: Finding) -> bool:
    call = case.waits.pending_calls[number].call
    return finding.comm is not None and (call.comm, call.seq) == (finding.comm.key, finding.seq)
