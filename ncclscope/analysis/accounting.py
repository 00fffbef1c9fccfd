"""Hold the causes against the wait graph: they have to account for all that waits, and no more.

Analyzers see a part of the job each: one communicator, transfers or endings. Here the causes become
those whose repair releases every waiting rank, and the others follow from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.precedence import as_consequence
from ncclscope.analysis.waits.graph import wait_graph
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    verb,
)
from ncclscope.engine.graph import WaitGraph
from ncclscope.model import Finding, Rank

_IN_GRAPH = frozenset({"not_joined", "dead_rank", "stalled", "extra_call", "p2p_mismatch"})
"""Kinds of findings on waits that the graph has. It has none for keys of a store, for instance."""

_LATE = ("not_joined", "dead_rank")


def account(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose causes release all that waits, if one set of ranks alone does.

    Args:
        case: The case.
        findings: The findings.
    """
    causes = [one for one in findings if one.role == "cause"]
    if not any(map(_is_wait, causes)) or any(one.comm is None for one in causes):
        return list(findings)
    graph = wait_graph(case)
    found = _accounted(case, graph, _without_redundant(graph, findings))
    return [_proved(graph, one, found) if one.role == "cause" else one for one in found]


def _without_redundant(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with waits as consequences where the calls that differ account for all."""
    ranks = _named([one for one in findings if not _is_wait(one)])
    if not ranks or graph.released(ranks) != graph.waiting.keys():
        return list(findings)
    kept = graph.abnormal - ranks
    return [
        as_consequence(one) if _is_wait(one) and not kept.intersection(one.diverging_ranks) else one
        for one in findings
    ]


def _accounted(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    findings = _without_late(graph, findings)
    causes = [one for one in findings if one.role == "cause"]
    waits = [one for one in causes if _is_wait(one)]
    if (repair := _only_repair(case, graph)) is not None:
        findings = _by_collective(findings, repair)
        causes = [one for one in findings if one.role == "cause"]
        waits = [one for one in causes if _is_wait(one)]
        found = [_settled(graph, one, repair) if one in waits else one for one in findings]
        unnamed = repair - _named(found)
        if unnamed <= graph.awaited:
            return [*(_held_up_by(case, graph, rank) for rank in sorted(unnamed)), *found]
    kept = graph.without_victims(_named(findings))
    found = [_among(one, kept) if one in waits else one for one in findings]
    return [_unless_rivals(graph, one) if one.role == "cause" else one for one in found]


def _without_late(graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with transfers as consequences whose rank is late for a collective, too.

    It waits for nothing: it is late for all of its calls.
    """
    late = graph.sinks & _named([one for one in findings if one.kind in _LATE])
    return [
        as_consequence(one)
        if one.kind == "p2p_mismatch"
        and _is_wait(one)
        and late.issuperset(one.diverging_ranks or {-1})
        else one
        for one in findings
    ]


def _by_collective(findings: Sequence[Finding], repair: frozenset[int]) -> list[Finding]:
    """Return findings with the collective that a rank never joined as cause, not its transfers.

    The transfer alone blames both of its sides. The collective names the rank whose repair
    releases all.
    """
    halves = [one for one in findings if one.role == "cause" and _lacks_a_half(one)]
    named = _named(findings)
    joined = next(
        (one for one in findings if one.kind == "not_joined" and {*one.diverging_ranks} == repair),
        None,
    )
    if joined is None or not halves or named:
        return list(findings)
    return [
        replace(one, role="cause")
        if one is joined
        else as_consequence(one)
        if one in halves
        else one
        for one in findings
    ]


def _lacks_a_half(finding: Finding) -> bool:
    """Return whether a finding is about a transfer, and which of its two ranks diverged is open."""
    return finding.kind == "p2p_mismatch" and _is_wait(finding) and not finding.diverging_ranks


def _named(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the ranks that the causes among findings name."""
    causes = (one for one in findings if one.role == "cause")
    return frozenset(rank for one in causes for rank in one.diverging_ranks)


def _only_repair(case: Case, graph: WaitGraph) -> frozenset[int] | None:
    """Return the ranks whose repair alone releases all that waits; None where several do.

    A rank that waits may have posted an extra call; or those that have not come to it are held up
    together, as by one storage, unless they have ended in order.
    """
    repairs = graph.cheapest
    if len(repairs) != 1 or repairs[0] == case.run.by_rank.keys():
        return None
    others = graph.sinks - repairs[0]
    return repairs[0] if all(case.run.by_rank[number].exited for number in others) else None


def _is_wait(finding: Finding) -> bool:
    """Return whether a finding is about ranks that wait for others, and not about what differs."""
    if finding.kind == "extra_call" and finding.peers is not None:
        return False
    if finding.kind == "p2p_mismatch" and None not in (finding.odd, finding.peers):
        return False
    return finding.kind in _IN_GRAPH


def _among(finding: Finding, kept: frozenset[int]) -> Finding:
    """Return a finding about those of its ranks that are no victims of others."""
    ranks = tuple(rank for rank in finding.diverging_ranks if rank in kept)
    if ranks == finding.diverging_ranks:
        return finding
    if not ranks:
        return as_consequence(finding)
    victims = [rank for rank in finding.diverging_ranks if rank not in kept]
    follows = f"{sentence(ranks_text(victims))} {verb(victims, 'wait')} for others, and"
    return replace(
        finding,
        summary=f"{finding.summary} {follows} would go on if {ranks_text(ranks)} came.",
        diverging_ranks=ranks,
    )


def _settled(graph: WaitGraph, finding: Finding, repair: frozenset[int]) -> Finding:
    """Return a finding about the ranks whose repair releases all that waits."""
    if finding.diverging_ranks:
        return _among(finding, repair)
    if finding.kind == "stalled" or not repair.issubset(finding.candidate_ranks):
        return as_consequence(finding)
    if graph.unseen.intersection(finding.candidate_ranks):
        return finding  # what has no record may not have come either
    ranks = tuple(sorted(repair))
    waiting = plural(len(graph.waiting), "waiting rank")
    return replace(
        finding,
        summary=f"{finding.summary} Only {ranks_text(ranks)} would release all {waiting}.",
        diverging_ranks=ranks,
        candidate_ranks=(),
        confidence="likely",
    )


def _unless_rivals(graph: WaitGraph, finding: Finding) -> Finding:
    """Return a finding that is not certain where other ranks account for all that waits as well.

    Nor where the rank itself waits, and it is not known for whom.
    """
    if finding.confidence != "certain" or not _is_wait(finding):
        return finding
    if held := graph.obscure.intersection(finding.diverging_ranks):
        doubt = f"{ranks_text(sorted(held))} {verb([*held], 'wait')} for something that is not seen"
        return replace(finding, confidence="likely", inferred=(*finding.inferred, doubt))
    if partly := graph.partly_waiting.intersection(finding.diverging_ranks):
        doubt = (
            f"another thread of {ranks_text(sorted(partly))} waits for other ranks, and the one "
            f"that never came may wait for it"
        )
        return replace(finding, confidence="likely", inferred=(*finding.inferred, doubt))
    named = {*finding.diverging_ranks}
    others = [one for one in graph.cheapest if not (one <= named or named <= one)]
    if not others:
        return finding
    rival = ranks_text(sorted(others[0]))
    doubt = f"a repair of {rival} instead would release all ranks that wait as well"
    return replace(finding, confidence="likely", inferred=(*finding.inferred, doubt))


def _proved(graph: WaitGraph, finding: Finding, found: Sequence[Finding]) -> Finding:
    """Return a cause with the count of waiting ranks that a repair of all causes releases."""
    ranks = _named(found)
    if not graph.waiting or not ranks:
        return finding
    rival = graph.nearest(ranks)
    of = len(graph.waiting)
    against = []
    if rival is not None and rival[1] < of:
        against.append(f"releases {rival[1]} of {of} waiting ranks")
    if rival is not None and not graph.abnormal <= {rival[0]}:
        against.append(f"leaves the end of {ranks_text(sorted(graph.abnormal))} unexplained")
    released = len(graph.released(ranks))
    proof = {
        "repair": {"kind": finding.kind, "ranks": sorted(ranks)},
        "releases": released,
        "of": of,
        "rival": None if rival is None else {"ranks": [rival[0]], "releases": rival[1]},
        "rival_against": against,
    }
    counts = f"all {plural(of, 'waiting rank')}" if released == of else f"{released} of {of}"
    then = "would go on" if released == of else "waiting ranks would go on"
    nearest = f"; if rank {rival[0]} did, {rival[1]} of {of}" if rival is not None else ""
    line = f"if {ranks_text(sorted(ranks))} did as the others expect, {counts} {then}{nearest}"
    return replace(finding, proof=proof, inferred=(*finding.inferred, line))


def _held_up_by(case: Case, graph: WaitGraph, number: int) -> Finding:
    """Return a finding about a rank at which all chains of waiting end."""
    waiting = [wait for wait in graph.waits if number in wait.awaited]
    first = min(waiting, key=lambda wait: (wait.call.time_ns or 0, wait.rank))
    rank = case.run.by_rank.get(number)
    comm = case.run.communicators[first.call.comm]
    those = [wait.rank for wait in waiting if wait.call.comm == comm.key]
    how = None if rank is None else case.how_it_ended(rank)
    kind, state = "not_joined", _whereabouts(case, rank)
    if rank is None:
        kind, state = "dead_rank", "left no record"
    elif how is not None:
        kind, state = "dead_rank", f"is dead, gone or stuck ({how})"
    return Finding(
        kind=kind,
        summary=(
            f"{sentence(rank_text(case.run, number))} {state}; {ranks_text(those)} "
            f"{verb(those, 'wait')} for it in {call_text(first.call)} on {comm_text(comm)}."
        ),
        comm=comm,
        seq=None,
        diverging_ranks=(number,),
        odd=None if rank is None else rank.last_call(transfers=True),
        odd_is="last_call",
        peers=first.call,
        confidence="likely",
        analyzer="accounting",
        evidence=tuple(
            f"rank {wait.rank} posted {call_text(wait.call)}; it is not known to have completed"
            for wait in waiting
        ),
        inferred=tuple(
            f"rank {wait.rank} waits for {ranks_text(sorted(wait.awaited))}" for wait in waiting
        ),
    )


def _whereabouts(case: Case, rank: Rank | None) -> str:
    last = None if rank is None else rank.last_call(transfers=True)
    if last is None:
        return "has posted no call"
    comm = case.run.communicators[last.comm]
    return f"never came: its last call is {call_text(last)} on {comm_text(comm)}"
