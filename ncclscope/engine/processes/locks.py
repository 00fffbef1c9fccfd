"""Name the ranks in which chains of file locks end, in place of those that wait for the locks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import as_consequence
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.reservations import WAITS
from ncclscope.model import Finding
from ncclscope.wording.names import sentence
from ncclscope.wording.waits import Lock, Wait

_Edges = Mapping[int, frozenset[int]]


def with_locks(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings on absent ranks as those on the ranks that hold the locks they wait for.

    Ranks that wait for each other's locks, or one of which waits for its peers with a lock that a
    peer needs, wait for ever, whatever the others do.

    Args:
        case: The case.
        findings: The findings.
    """
    locks = {
        rank: frozenset(holders)
        for rank, holders in case.run.locks.items()
        if case.run.by_rank.keys() >= {*holders} and rank not in case.waits.pending_calls
    }
    if not locks:
        return list(findings)
    edges = {**_in_calls(case, locks), **locks}
    found: list[Finding] = []
    known: set[tuple[int, ...]] = set()
    for one in findings:
        if one.role == "cause" and one.kind in WAITS:
            one = _held_up(one, locks, edges)
            about = one.diverging_ranks or one.candidate_ranks
            one = as_consequence(one) if about in known else one
            known.add(about)
        found.append(one)
    return found


def _in_calls(case: Case, locks: _Edges) -> _Edges:
    """Return for which of the ranks at a lock others wait in their calls."""
    edges = {
        rank: frozenset(one.absent) & locks.keys() for rank, one in case.waits.pending_calls.items()
    }
    snapshot = case.run.snapshot
    if snapshot is not None and not edges:
        motions = read_motions(snapshot).items()
        edges = {rank: frozenset(locks) for rank, motion in motions if motion.is_waiting}
    return {rank: others - {rank} for rank, others in edges.items() if others}


def _held_up(finding: Finding, locks: _Edges, edges: _Edges) -> Finding:
    """Return a finding on the ranks in which the locks of its absent ranks end."""
    about = {*(finding.diverging_ranks or finding.candidate_ranks)}
    inside = edges.keys() - locks.keys()
    # Where it names those that wait, it is as much about those for which they wait.
    held = about & locks.keys() or frozenset().union(*(edges[one] for one in about & inside))
    if not held:
        return finding
    reached = _reached(held, edges)
    ends = reached - edges.keys()
    cycle = {one for one in reached if one in _reached(edges.get(one, ()), edges)}
    ranks = sorted((about - locks.keys() - inside) | ends | cycle)
    lines = tuple(
        Lock.OWN.of(one) if locks[one] == {one} else Lock.HELD.of(one, locks[one])
        for one in sorted(reached & locks.keys())
    )
    lines += tuple(Lock.IN_CALL.of(one, edges[one]) for one in sorted(cycle & inside))
    text = "; ".join(lines)
    said = Wait.EACH_OTHER.of(text) if len(cycle) > 1 else f"{sentence(text)}."
    is_named = len(ranks) == 1 or (not cycle and bool(finding.diverging_ranks))
    is_absence = finding.kind != "extra_call" and finding.comm is not None
    return replace(
        finding.naming(ranks) if is_named else finding.undecided(ranks),
        kind="not_joined",
        summary=f"{said} {finding.summary}" if is_absence else said,
        evidence=(*finding.evidence, *lines),
        inferred=(),
        proof=None,
    )


def _reached(starts: Collection[int], edges: _Edges) -> set[int]:
    found, left = {*starts}, [*starts]
    while left:
        new = edges.get(left.pop(), frozenset()) - found
        found |= new
        left += new
    return found
