"""Turn differences into findings, with their evidence."""

from __future__ import annotations

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.align import Edit
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.elsewhere import may_be_elsewhere
from ncclscope.engine.sequences.survived import AssumedCall
from ncclscope.model import Blame, Call, Fact, Finding
from ncclscope.wording.differences import Differ
from ncclscope.wording.names import plural

MANY = 256
"""Calls that every member posted after a difference, from which on it may have been survived."""


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
        summary: The finding in one sentence.
        extent: Number of calls concerned.
        inferred: Conclusions beyond the records.
        evidence: Facts read off the records, added to those that each difference has.
    """
    decided, first, edits = difference.decided, difference.first, len(difference.edits)
    facts: list[str] = [Fact.of_call(_agree_before(difference))]
    others = [rank for rank in difference.peers if rank not in difference.suspect]
    sides = (difference.odd, difference.peers) if decided else (difference.suspect, others)
    if decided or len(sides[0]) > len(sides[1]):
        posted = Differ.POSTED.of(one=difference, odd=sides[0], peers=sides[1])
        facts.append(Fact.of_call(posted, *sides))
    else:
        facts.append(Differ.EQUAL_SIDES.of(difference))
    facts += evidence
    thoughts = list(inferred)
    off = abs(first.inserted - first.deleted)
    if difference.inferred and off:
        until = Differ.FURTHER if edits > 1 else Differ.TO_END
        thoughts.append(Differ.SHIFTED.of(one=difference, off=off, until=until))
    elif difference.item:
        facts.append(Differ.NOTICED.of(difference))
    if (other := difference.other or difference.rival) is not None:
        thoughts.append(_would_fit(difference, other))
    if decided and _follows_equal_calls(case, difference):
        thoughts.append(Differ.EQUAL_CALLS.of(difference))
    elsewhere = may_be_elsewhere(case.logs(difference.comm.key), difference) if decided else None
    if elsewhere is not None:
        thoughts.append(elsewhere.of(difference.odd))
    members = len(difference.comm.ranks)
    is_most = difference.basis != "majority" or 2 * len(difference.peers) > members
    if decided and not is_most:
        thoughts.append(Differ.NO_MAJORITY.of(difference.peers, members))
    if decided and difference.outvoted:
        thoughts.append(Differ.OUTVOTED.of(difference.peers))
    if difference.reason is not None:
        thoughts.append(difference.reason)
    if not decided:
        thoughts.append(Differ.OPEN.of())
    confidence = "certain"
    if (
        inferred
        or not (difference.certain and is_most)
        or difference.has_few_after
        or elsewhere is not None
        or difference.rival is not None
    ):
        confidence = "likely"
    role = "cause"
    if difference.survived:
        facts.append(Differ.COMPLETED.of(plural(difference.survived, "call")))
        summary = Differ.WENT_ON.of(summary)
        if _is_hole(difference):
            role, confidence = "latent", "likely"
            thoughts.append(Differ.IS_HOLE.of())
        elif difference.order is not None:
            confidence = "likely"
            thoughts.append(Differ.WRONG_DATA.of())
    elif decided and (ahead := _posted_after(case, difference)) >= MANY:
        confidence = "likely"
        thoughts.append(Differ.ENQUEUED.of(ahead))
    if edits > 1 and decided:
        facts.append(Differ.LATER.of(plural(edits - 1, "more difference")))
    return Finding(
        kind=kind,
        summary=summary,
        comm=difference.comm,
        seq=difference.seq,
        seqs=difference.seqs,
        round=_round(case, difference),
        blame=Blame.on(difference.odd, confidence) if decided else Blame.among(difference.peers),
        odd=difference.odd_call,
        peers=difference.peer_call,
        role=role,
        evidence=tuple(facts),
        inferred=tuple(thoughts),
        extent=extent,
        aligned=tuple((_recorded(peer), _recorded(odd)) for peer, odd in difference.aligned),
        survived=difference.survived,
    )


def newest_of_peers(case: Case, difference: Difference) -> int:
    """Return the number of the newest call that a peer has posted."""
    logs = case.logs(difference.comm.key)
    return max((logs[rank].calls for rank in difference.peers if rank in logs), default=0)


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


def _agree_before(difference: Difference) -> str:
    """Return what is known of the calls before a difference."""
    seq, after = difference.seq, difference.after
    if difference.exact and not after:
        return Differ.AGREE.of(difference.comm, seq - difference.equal)
    if not difference.exact:
        return Differ.OVERWRITTEN.of(difference)
    return (Differ.FOLLOWS if after + 1 == seq else Differ.AGREE_AFTER).of(difference)


def _would_fit(difference: Difference, other: Edit) -> str:
    """Return which other edit explains the calls as well."""
    if other.inserted and other.deleted:
        return Differ.ANOTHER_FITS.of()
    fits = Differ.FITS if difference.replaced else Differ.FITS_UNMATCHED
    did = "extra call" if other.inserted else "missing call"
    return fits.of(plural(other.inserted or other.deleted, did))


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
