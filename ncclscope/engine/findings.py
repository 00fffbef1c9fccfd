"""Turn differences into findings, with their evidence in words."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.difference import Difference, Item
from ncclscope.engine.sequences.habit import PAST, known_by
from ncclscope.engine.sequences.survived import AssumedCall
from ncclscope.model import Call, Fact, Finding
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
)

MANY = 256
"""Calls that every member posted after a difference, from which on it may have been survived."""


def contrast(difference: Difference) -> str:
    """Return ``call 5, all_reduce sum [8] on ranks 0-2, is all_gather [8] there``."""
    odd, peer = call_text(difference.odd_call), call_text(difference.peer_call)
    theirs = f"call {difference.seq}, {peer}"
    graphs = graphs_text(difference)
    if odd != peer:
        more = f": {graphs}" if graphs else ""
        return f"{theirs} on {ranks_text(difference.peers)}, is {odd} there{more}"
    if difference.item is Item.GRAPHS and graphs:
        return f"{theirs}, is the first that differs: {graphs}"
    lines = difference.odd_call.site, difference.peer_call.site
    if None not in lines and lines[0] != lines[1]:
        return (
            f"{theirs}, comes from {lines[1]} on {ranks_text(difference.peers)}, "
            f"from {lines[0]} there"
        )
    side = "behind" if difference.surplus < 0 else "ahead of"
    if len(difference.edits) > 1 and difference.surplus:
        return (
            f"from {theirs}, on it is {side} {ranks_text(difference.peers)}, finally by "
            f"{plural(abs(difference.surplus), 'call')}"
        )
    return (
        f"from {theirs}, on it is {plural(abs(difference.surplus), 'call')} {side} "
        f"{ranks_text(difference.peers)}"
    )


def graphs_text(difference: Difference) -> str:
    """Return ``graph 1 has 3 calls there, that of ranks 0 2 has 4``; empty where both have as many.

    Empty, too, where one of the calls was not replayed from a graph.
    """
    own, other = difference.odd_call.replay, difference.peer_call.replay
    if own is None or other is None or own.calls == other.calls:
        return ""
    return (
        f"graph {difference.odd_call.graph} has {plural(own.calls, 'call')} there, "
        f"that of {ranks_text(difference.peers)} has {plural(other.calls, 'call')}"
    )


def subject(case: Case, difference: Difference) -> str:
    """Return who diverged: ``Rank 6 (node-15, pid 3408431)``, ``One side of ranks 2 3``."""
    if not difference.odd:
        return f"One side of {ranks_text(difference.peers)}"
    return subject_of(case, difference.odd)


def subject_of(case: Case, ranks: Sequence[int]) -> str:
    """Return ranks as the beginning of a sentence, a single one with its host and process."""
    return sentence(rank_text(case.run, ranks[0]) if len(ranks) == 1 else ranks_text(ranks))


def _may_be_elsewhere(case: Case, difference: Difference) -> bool:
    """Return whether a call in place of another may be a later, or an earlier, one of a loop.

    As long as the ranks wait in it, a call of the loop does not show which round it belongs to.
    Sizes show it only where the line had one size before.
    """
    odd, peer = difference.odd_call, difference.peer_call
    if not difference.replaced or difference.first.matched or difference.order:
        return False
    if None in (odd.site, peer.site):
        return False
    log = case.logs(difference.comm.key).get(difference.peers[0])
    if log is None:
        return False
    past = log.span(max(log.first, difference.seq - PAST), difference.seq)
    place = known_by(odd, by_line=True)
    own = [one.signature for one in past if known_by(one, by_line=True) == place]
    if place != known_by(peer, by_line=True):
        return bool(own)
    once = len(own) == 1 and own[0] != peer.signature  # too few to know that it has one size
    return once or len({*own}) > 1


def _follows_equal_calls(case: Case, difference: Difference) -> bool:
    """Return whether one of the equal calls before a difference could be missing, or one too many.

    The diverging rank posted one call for its peers', from another line.
    """
    odd, peer, before = difference.odd_call, difference.peer_call, difference.seq - 1
    log = case.logs(difference.comm.key).get(difference.peers[0])
    if not difference.replaced or difference.first.matched or None in (odd.site, peer.site):
        return False
    if odd.site == peer.site or log is None or before < max(log.first, 1):
        return False
    last = log.call(before)
    return (last.signature, last.site) == (peer.signature, peer.site)


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
    """Make a finding of a difference.

    Args:
        case: The case in which it was found.
        difference: The difference.
        kind: The finding's kind, such as ``extra_call``.
        analyzer: Name of the analyzer.
        summary: The finding in one sentence.
        extent: Number of calls concerned.
        inferred: Conclusions beyond the records.
        evidence: Facts read off the records, added to those that each difference has.
    """
    decided = difference.decided
    facts: list[str] = [
        Fact.of_call(f"{comm_text(difference.comm)}: {_agreement_before(difference)}")
    ]
    others = [rank for rank in difference.peers if rank not in difference.suspect]
    sides = (difference.odd, difference.peers) if decided else (difference.suspect, others)
    if decided or len(sides[0]) > len(sides[1]):
        facts.append(
            Fact.of_call(
                f"#{difference.seq}: {ranks_text(sides[0])} posted "
                f"{call_text(difference.odd_call)}{site_text(difference.odd_call)}, "
                f"{ranks_text(sides[1])} {call_text(difference.peer_call)}"
                f"{site_text(difference.peer_call)}",
                *sides,
            )
        )
    else:
        facts.append(
            f"#{difference.seq}: two sides of equal size posted "
            f"{call_text(difference.odd_call)}{site_text(difference.odd_call)} and "
            f"{call_text(difference.peer_call)}{site_text(difference.peer_call)}"
        )
    facts += evidence
    thoughts = list(inferred)
    if difference.inferred and difference.first.inserted != difference.first.deleted:
        off = abs(difference.first.inserted - difference.first.deleted)
        until = "on, and further later" if len(difference.edits) > 1 else "to the end"
        thoughts.append(
            f"which call it is: the calls here have equal operation, type and size, but "
            f"{difference.item} match the peers' shifted by {off}, from #{difference.seq} {until}"
        )
    elif difference.item:
        facts.append(
            f"the calls themselves differ from #{difference.noticed} on, {difference.item} from "
            f"#{difference.seq} on"
        )
    if difference.other is not None:
        did = "extra" if difference.other.inserted else "missing"
        count = difference.other.inserted or difference.other.deleted
        rest = "" if difference.replaced else ", with more calls unmatched at the end"
        if difference.other.inserted and difference.other.deleted:
            thoughts.append("one call in place of another would fit the calls here as well")
        else:
            thoughts.append(f"{plural(count, f'{did} call')} would fit as well{rest}")
    if decided and _follows_equal_calls(case, difference):
        thoughts.append(
            f"{ranks_text(difference.odd)} may have posted another number of the equal calls "
            f"before #{difference.seq}, and be elsewhere in the program since then"
        )
    elsewhere = decided and _may_be_elsewhere(case, difference)
    if elsewhere:
        thoughts.append(
            f"{ranks_text(difference.odd)} may have come to another round of the loop: such calls "
            f"were posted before"
        )
    members = len(difference.comm.ranks)
    is_most = difference.basis != "majority" or 2 * len(difference.peers) > members
    if decided and not is_most:
        thoughts.append(
            f"{ranks_text(difference.peers)} are right: they are most of those that posted the "
            f"call, but no majority of the {members} members"
        )
    if difference.reason is not None:
        thoughts.append(difference.reason)
    if not decided:
        thoughts.append("the records do not show which side diverged")
    confidence = "certain"
    if not decided:
        confidence = "ambiguous"
    elif inferred or not (difference.certain and is_most) or difference.has_few_after or elsewhere:
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
                "it did not cause a hang: the job went on, so the record has a hole there, or "
                "members may differ in this call"
            )
        elif difference.order is not None:
            confidence = "likely" if decided else "ambiguous"
            thoughts.append(
                "these calls were matched with each other and left wrong data: they completed, as "
                "small calls of equal size do"
            )
    elif decided and (ahead := _posted_after(case, difference)) >= MANY:
        confidence = "likely"
        thoughts.append(
            f"it is the cause: all members posted at least {ahead} calls after it, which the "
            f"launch queues of the devices can hold"
        )
    later = len(difference.edits) - 1
    if later and decided:
        facts.append(f"later on the same communicator: {plural(later, 'more difference')}")
    return Finding(
        kind=kind,
        summary=summary,
        comm=difference.comm,
        seq=difference.seq,
        seqs=difference.seqs,
        round=_round(case, difference),
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


def _round(case: Case, difference: Difference) -> tuple[Call, ...]:
    """Return the peers' calls of the round that the diverging ranks left out."""
    if difference.rounds is None or not difference.skipped:
        return ()
    logs = case.logs(difference.comm.key)
    known = [logs[number] for number in difference.peers if number in logs]
    log = max(known, key=lambda log: log.calls, default=None)
    if log is None:
        return ()
    stop = min(difference.seq + difference.rounds.calls, log.calls + 1)
    return tuple(log.span(difference.seq, stop))


def _agreement_before(difference: Difference) -> str:
    """Return what is known of the calls before a difference."""
    seq, after = difference.seq, difference.after
    if not difference.exact:
        return f"the members already differ in overwritten records, at #{seq} or before"
    if not after:
        return f"all calls before #{seq - difference.equal} agree"
    if after + 1 == seq:
        return f"#{seq} follows another difference, #{after}"
    return f"all calls after another difference, #{after}, and before #{seq} agree"


def _recorded(call: Call | None) -> Call | None:
    return None if isinstance(call, AssumedCall) else call


def _is_hole(difference: Difference) -> bool:
    """Return whether a survived difference cannot have happened as it is recorded.

    Calls of one operation with different parameters may complete, with wrong data. Over NCCL, an
    all_gather matched with a reduce_scatter completes, too. A record that holds both calls has no
    hole. Another operation, an extra call or a missing call never completes.
    """
    if difference.order is not None and len(difference.edits) == 1 and not difference.surplus:
        return False
    same = difference.odd_call.op == difference.peer_call.op
    return not same or not difference.replaced or bool(difference.surplus)


def _posted_after(case: Case, difference: Difference) -> int:
    """Return how many calls all members enqueued after a difference; 0 where hosts block."""
    if difference.comm.backend == "gloo" or case.run.window:
        return 0
    logs = case.logs(difference.comm.key).values()
    return min(log.calls for log in logs) - difference.seq
