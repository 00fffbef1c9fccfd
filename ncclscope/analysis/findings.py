"""Differences and waits -> findings, with their evidence in words."""

from __future__ import annotations

from ncclscope.analysis.case import Case, Difference
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
)
from ncclscope.model import Finding

__all__ = ["from_difference", "subject"]


def subject(case: Case, difference: Difference) -> str:
    """Returns who differs: ``Rank 6 (node-15, pid 3408431)``, ``One of ranks 2 3``."""
    if not difference.odd:
        return f"One side of {ranks_text(difference.peers)}"
    if len(difference.odd) == 1:
        text = rank_text(case.run, difference.odd[0])
    else:
        text = ranks_text(difference.odd)
    return sentence(text)


def from_difference(
    case: Case,
    difference: Difference,
    *,
    kind: str,
    analyzer: str,
    summary: str,
    extent: int = 0,
    inferred: tuple[str, ...] = (),
    evidence: tuple[str, ...] = (),
) -> Finding:
    """Makes a finding of a difference.

    Args:
        case: Where it was found.
        difference: The difference.
        kind: What it amounts to.
        analyzer: Who says so.
        summary: One sentence.
        extent: Calls concerned.
        inferred: Statements beyond the records.
        evidence: Statements read off the records, added to those that go without saying.
    """
    decided = bool(difference.odd)
    facts = [
        f"{comm_text(difference.comm)}: all calls before #{difference.seq} agree"
        if difference.exact
        else f"{comm_text(difference.comm)}: the members already differ in what is overwritten, "
        f"at #{difference.seq} or before"
    ]
    if decided:
        facts.append(
            f"#{difference.seq}: {ranks_text(difference.odd)} posted "
            f"{call_text(difference.odd_call)}{site_text(difference.odd_call)}, "
            f"{ranks_text(difference.peers)} {call_text(difference.peer_call)}"
            f"{site_text(difference.peer_call)}"
        )
    else:
        facts.append(
            f"#{difference.seq}: two sides of equal weight posted "
            f"{call_text(difference.odd_call)} and {call_text(difference.peer_call)}"
        )
    facts += evidence
    thoughts = list(inferred)
    if difference.reason is not None:
        thoughts.append(difference.reason)
    if not decided:
        thoughts.append("the records do not say which side is odd")
    confidence = "certain"
    if not decided:
        confidence = "ambiguous"
    elif inferred or not difference.certain:
        confidence = "likely"
    later = len(difference.edits) - 1
    if later and decided:
        facts.append(f"later on the same communicator: {plural(later, 'more difference')}")
    return Finding(
        kind=kind,
        summary=summary,
        comm=difference.comm,
        seq=difference.seq,
        diverging_ranks=difference.odd,
        candidate_ranks=() if decided else difference.peers,
        odd=difference.odd_call,
        peers=difference.peer_call,
        confidence=confidence,
        role="cause",
        analyzer=analyzer,
        evidence=tuple(facts),
        inferred=tuple(thoughts),
        extent=extent,
        aligned=difference.aligned,
    )
