"""Findings on ranks that wait outside of calls: what they wait for there explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import WAITS, as_consequence
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.repairs.graph import Outside, Wait, WaitGraph
from ncclscope.engine.waits.engine_steps import links_behind
from ncclscope.engine.waits.graph import store_waits, wait_graph
from ncclscope.engine.waits.noted import doing
from ncclscope.model import Finding, Run
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import sentence
from ncclscope.wording.waits import Lock
from ncclscope.wording.waits import Wait as Why

_MEETING = "init_stalled"
"""The kind of a finding on ranks that have not come to the meeting of all."""


def past_outside(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings on absent ranks as those on what these wait for outside of calls.

    Args:
        case: The case.
        findings: The findings.
    """
    found = list(findings)
    if _may_pass_on(case.run):
        found = _past_waits(case, findings)
    at_store = {wait.rank for wait in store_waits(case.run)}
    found = [_at_store(case, one) if at_store & {*one.diverging_ranks} else one for one in found]
    if any(one.role == "cause" and one.kind == _MEETING for one in found):
        found = [
            as_consequence(one)
            if _is_absence(one) and at_store & {*(one.diverging_ranks or one.candidate_ranks)}
            else one
            for one in found
        ]
    return found


def _at_store(case: Case, finding: Finding) -> Finding:
    """Return a finding that names ranks at a store, as open among those that may set the key."""
    ranks = finding.diverging_ranks
    if finding.role != "cause" or not _is_absence(finding):
        return finding
    either = frozenset(ranks).union(*wait_graph(case).cheapest)
    if either == {*ranks}:
        return finding
    noted = [(rank, doing(case.run.by_rank[rank])) for rank in ranks if rank in case.run.by_rank]
    lines = [f"rank {rank} {one.clause}" for rank, one in noted if one is not None]
    return replace(
        finding.with_clause(f"; {'; '.join(lines)}").undecided(sorted(either)),
        evidence=(*finding.evidence, *lines),
        inferred=(str(Doubt.WHICH_IS_WRONG),),
    )


def _may_pass_on(run: Run) -> bool:
    """Return whether ranks may wait for others at locks or sockets, or for work."""
    seen = () if run.snapshot is None else run.snapshot.workers
    has_engines = any("engine" in one.labels for one in run.others)
    return bool(run.locks) or has_engines or any(one.other_end >= 0 for one in seen)


def _past_waits(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings on ranks at locks, or without work, as those on the ends of their chains.

    Ranks that wait for each other, one of them for a lock, wait for ever, whatever others do.
    """
    graph, found = wait_graph(case), list[Finding]()
    passed = [
        _in_its_ends(case, graph, one, findings)
        if one.role == "cause" and (_is_absence(one) or one.kind == _MEETING)
        else one
        for one in findings
    ]
    # Who is named for what it did itself is not named once more for what others wait for.
    known = [
        _about(one)
        for one, before in zip(passed, findings, strict=True)
        if one is before and one.role == "cause" and _is_absence(one)
    ]
    for one, before in zip(passed, findings, strict=True):
        is_again = one is not before and one.role == "cause" and _about(one) in known
        found.append(as_consequence(one) if is_again else one)
        known.append(_about(one))
    return found


def _about(finding: Finding) -> tuple[int, ...]:
    return finding.diverging_ranks or finding.candidate_ranks


def _is_absence(finding: Finding) -> bool:
    """Return whether a finding is about ranks that did not come, or lack a half of a transfer."""
    lacks_half = finding.kind == "p2p_mismatch" and None in (finding.odd, finding.peers)
    return lacks_half or finding.kind in WAITS


def _in_its_ends(
    case: Case, graph: WaitGraph, finding: Finding, findings: Sequence[Finding]
) -> Finding:
    waits = {wait.rank: wait for wait in graph.waits if wait.is_passed_on}
    about = {*(finding.diverging_ranks or finding.candidate_ranks)}
    inside = about & graph.waiting.keys() - waits.keys()
    # Where it names those that wait, it is as much about those for which they wait.
    held = about & waits.keys() or waits.keys() & graph.reached(inside)
    if not held:
        return finding
    reached = graph.reached(held)
    ends = graph.ends(held)
    if any(one in waits and waits[one].outside is Outside.WORK for one in ends):
        return finding  # in a cycle, no one keeps the others from work
    if ends <= _waiting_as_seen(case) - graph.waiting.keys():
        # They wait in calls that are not recorded: for whom, another finding may say.
        others = [one for one in findings if one is not finding and one.role == "cause"]
        return as_consequence(finding) if others else finding.undecided(sorted(about | ends))
    ends = ends & frozenset().union(*graph.cheapest) or ends
    ranks = sorted((about - waits.keys() - inside) | ends)
    meets = finding.kind == _MEETING
    lines = [_passed_on(case.run, waits[one]) for one in sorted(reached & waits.keys())]
    lines += [
        (Lock.IN_MEETING if meets else Lock.IN_CALL).of(one, sorted(graph.awaited_by(one)))
        for one in ranks
        if one in graph.waiting and one not in waits
    ]
    is_cycle = len(ends) > 1 and bool(ends & graph.waiting.keys())
    text = "; ".join(lines)
    said = Why.EACH_OTHER.of(text) if is_cycle else f"{sentence(text)}."
    is_named = len(ranks) == 1 or (not is_cycle and bool(finding.diverging_ranks))
    is_absence = meets or (finding.kind != "extra_call" and finding.comm is not None)
    return replace(
        finding.naming(ranks) if is_named else finding.undecided(ranks),
        kind=_MEETING if meets else "not_joined",
        summary=f"{said} {finding.summary}" if is_absence else said,
        evidence=(*finding.evidence, *lines),
        inferred=(),
    )


def _waiting_as_seen(case: Case) -> frozenset[int]:
    """Return the ranks that stacks show in calls."""
    motions = {} if case.run.snapshot is None else read_motions(case.run.snapshot)
    return frozenset(number for number, one in motions.items() if one.is_waiting)


def _passed_on(run: Run, wait: Wait) -> str:
    if wait.outside is Outside.WORK:
        links = links_behind(run, run.by_rank[wait.rank])
        return Lock.WORK.of(wait.rank, ", and ".join(link.text for link in links))
    if wait.outside is Outside.SOCKET:
        return Lock.SOCKET.of(wait.rank, wait.awaited)
    if wait.awaited == {wait.rank}:
        return Lock.OWN.of(wait.rank)
    return Lock.HELD.of(wait.rank, wait.awaited)
