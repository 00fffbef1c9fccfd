"""File locks: ranks at one wait for those that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import WAITS
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.repairs.graph import Wait, WaitGraph
from ncclscope.model import Finding
from ncclscope.wording.names import sentence
from ncclscope.wording.waits import Lock
from ncclscope.wording.waits import Wait as Words


def lock_waits(case: Case) -> list[Wait]:
    """Return the waits at file locks that ranks hold, none of which waits in a collective as well.

    Where no call of any rank is recorded, also those of ranks whose stacks are in a call: they may
    wait for each rank at a lock.
    """
    found = [
        Wait(rank, None, frozenset(holders), at_lock=True)
        for rank, holders in sorted(case.run.locks.items())
        if case.run.by_rank.keys() >= {*holders} and rank not in case.waits.pending_calls
    ]
    snapshot = case.run.snapshot
    if found and snapshot is not None and not case.waits.pending_calls:
        at_locks = frozenset(wait.rank for wait in found)
        found += [
            Wait(rank, None, at_locks)
            for rank, motion in sorted(read_motions(snapshot).items())
            if motion.is_waiting and rank not in at_locks
        ]
    return found


def past_locks(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings on absent ranks at locks as those on the ranks in which their chains end.

    Ranks that wait for each other, one of them for a lock, wait for ever, whatever others do.

    Args:
        graph: Who waits for whom.
        findings: The findings.
    """
    found: list[Finding] = []
    known: set[tuple[int, ...]] = set()
    for one in findings:
        if one.role == "cause" and (one.kind in WAITS or _lacks_half(one)):
            one = _past_locks(graph, one)
            about = one.diverging_ranks or one.candidate_ranks
            one = replace(one, role="consequence") if about in known else one
            known.add(about)
        found.append(one)
    return found


def _lacks_half(finding: Finding) -> bool:
    return finding.kind == "p2p_mismatch" and None in (finding.odd, finding.peers)


def _past_locks(graph: WaitGraph, finding: Finding) -> Finding:
    waits = {wait.rank: wait for wait in graph.waits if wait.at_lock}
    about = {*(finding.diverging_ranks or finding.candidate_ranks)}
    inside = about & graph.waiting.keys() - waits.keys()
    # Where it names those that wait, it is as much about those for which they wait.
    held = about & waits.keys() or waits.keys() & graph.reached(inside)
    if not held:
        return finding
    reached = graph.reached(held)
    ends = graph.ends(held)
    ends = ends & frozenset().union(*graph.cheapest) or ends
    ranks = sorted((about - waits.keys() - inside) | ends)
    lines = [
        Lock.OWN.of(one) if waits[one].awaited == {one} else Lock.HELD.of(one, waits[one].awaited)
        for one in sorted(reached & waits.keys())
    ]
    lines += [
        Lock.IN_CALL.of(one, sorted(graph.awaited_by(one)))
        for one in ranks
        if one in graph.waiting and one not in waits
    ]
    is_cycle = len(ends) > 1 and bool(ends & graph.waiting.keys())
    text = "; ".join(lines)
    said = Words.EACH_OTHER.of(text) if is_cycle else f"{sentence(text)}."
    is_named = len(ranks) == 1 or (not is_cycle and bool(finding.diverging_ranks))
    is_absence = finding.kind != "extra_call" and finding.comm is not None
    return replace(
        finding.naming(ranks) if is_named else finding.undecided(ranks),
        kind="not_joined",
        summary=f"{said} {finding.summary}" if is_absence else said,
        evidence=(*finding.evidence, *lines),
        inferred=(),
    )
