"""Differences and waits -> findings, with their evidence in words."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.analysis.case import Case
from ncclscope.analysis.sequences.difference import Difference
from ncclscope.analysis.sequences.survived import AssumedCall
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
)
from ncclscope.model import Call, Finding

__all__ = ["contrast", "from_difference", "subject", "subject_of"]

MANY = 256
"""Calls after a difference on every member, from which on it may have been survived."""


def contrast(difference: Difference) -> str:
    """Returns ``call 5, all_reduce sum [8] on ranks 0-2, is all_gather [8] there``."""
    odd, peer = call_text(difference.odd_call), call_text(difference.peer_call)
    theirs = f"call {difference.seq}, {peer}"
    if odd != peer:
        return f"{theirs} on {ranks_text(difference.peers)}, is {odd} there"
    lines = difference.odd_call.site, difference.peer_call.site
    if None not in lines and lines[0] != lines[1]:
        return (
            f"{theirs}, comes from {lines[1]} on {ranks_text(difference.peers)}, "
            f"from {lines[0]} there"
        )
    side = "behind" if difference.surplus < 0 else "ahead of"
    if len(difference.edits) > 1 and difference.surplus:
        return (
            f"from {theirs}, on it gets {side} {ranks_text(difference.peers)}, by "
            f"{abs(difference.surplus)} in the end"
        )
    return (
        f"from {theirs}, on it is {abs(difference.surplus)} {side} {ranks_text(difference.peers)}"
    )


def subject(case: Case, difference: Difference) -> str:
    """Returns who differs: ``Rank 6 (node-15, pid 3408431)``, ``One of ranks 2 3``."""
    if not difference.odd:
        return f"One side of {ranks_text(difference.peers)}"
    return subject_of(case, difference.odd)


def subject_of(case: Case, ranks: Sequence[int]) -> str:
    """Returns ranks as the beginning of a sentence, a single one with its host and process."""
    return sentence(rank_text(case.run, ranks[0]) if len(ranks) == 1 else ranks_text(ranks))


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
            f"{call_text(difference.odd_call)}{site_text(difference.odd_call)} and "
            f"{call_text(difference.peer_call)}{site_text(difference.peer_call)}"
        )
    facts += evidence
    thoughts = list(inferred)
    if difference.inferred and difference.first.put != difference.first.left:
        off = abs(difference.first.put - difference.first.left)
        until = "on, and further later" if len(difference.edits) > 1 else "to the end"
        thoughts.append(
            f"which call it is: these calls equal each other in all that members must agree in, "
            f"but {difference.item} are those of the others, shifted by {off}, from "
            f"#{difference.seq} {until}"
        )
    elif difference.item:
        facts.append(
            f"in what members must agree in they differ from #{difference.noticed} on, in "
            f"{difference.item} from #{difference.seq} on"
        )
    if difference.other is not None:
        did = "put in" if difference.other.put else "left out"
        count = plural(difference.other.put or difference.other.left, "call")
        thoughts.append(f"{count} {did} would fit as well, with more calls left over at the end")
    if difference.reason is not None:
        thoughts.append(difference.reason)
    if not decided:
        thoughts.append("the records do not say which side is odd")
    confidence = "certain"
    if not decided:
        confidence = "ambiguous"
    elif inferred or not difference.certain:
        confidence = "likely"
    role = "cause"
    if difference.survived:
        facts.append(
            f"all members completed at least {plural(difference.survived, 'call')} after it"
        )
        summary = f"{summary} All members went on and completed calls after it."
        if _is_hole(difference):
            role, confidence = "latent", "likely"
            thoughts.append(
                "no cause of a hang: the job went on, so that the record has a hole there, or the "
                "members may differ in this call"
            )
        elif difference.order is not None:
            confidence = "likely" if decided else "ambiguous"
            thoughts.append(
                "that these calls met each other and left wrong data: they completed, as small "
                "ones of equal size do"
            )
    elif decided and (ahead := _posted_after(case, difference)) >= MANY:
        confidence = "likely"
        thoughts.append(
            f"that it is the cause: all members posted {ahead} calls and more after it, as many "
            f"as the queues of the devices may hold"
        )
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
        role=role,
        analyzer=analyzer,
        evidence=tuple(facts),
        inferred=tuple(thoughts),
        extent=extent,
        aligned=tuple((_recorded(peer), _recorded(odd)) for peer, odd in difference.aligned),
        survived=difference.survived,
    )


def _recorded(call: Call | None) -> Call | None:
    return None if isinstance(call, AssumedCall) else call


def _is_hole(difference: Difference) -> bool:
    """Whether a difference that was survived cannot have happened as it is recorded.

    Calls of one operation with other parameters may complete, with wrong data, and over NCCL an
    all_gather and a reduce_scatter the other way round do, too. A record that lacks neither of the
    two has no hole. Another operation, a call more or a call less does not complete.
    """
    if difference.order is not None and len(difference.edits) == 1 and not difference.surplus:
        return False
    same = difference.odd_call.op == difference.peer_call.op
    return not same or not difference.replaced or bool(difference.surplus)


def _posted_after(case: Case, difference: Difference) -> int:
    """Return how many calls each member has posted after a difference, where hosts only enqueue."""
    if difference.comm.backend == "gloo" or case.run.window:
        return 0
    logs = case.logs(difference.comm.key).values()
    return min(log.calls for log in logs) - difference.seq
