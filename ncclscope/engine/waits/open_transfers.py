"""Sends and receives in which ranks wait, and which cannot be numbered within a pair.

A receive from any source may take any rank's send, and a ring that has overwritten records lacks
the first ones. The newest call of a rank still shows that it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ncclscope.engine.damaged import has_damaged_transfers
from ncclscope.engine.repairs.graph import Wait, WaitGraph
from ncclscope.engine.waits.completion import is_in_transfer
from ncclscope.engine.waits.transfers import (
    StuckTransfer,
    is_led_elsewhere,
    is_partial,
    pairs,
    proof_of,
)
from ncclscope.model import Blame, Call, Communicator, Finding, State
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import call_text, plural, site_text, who_text
from ncclscope.wording.p2p import Half, Stuck

if TYPE_CHECKING:
    from ncclscope.engine.case import Case

_KIND = "p2p_mismatch"
_OTHER_SIDE = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class OpenTransfer:
    """The newest call of a rank, a send or receive that cannot be numbered within a pair.

    Receives from any source, and records that were overwritten, leave the number unknown.

    Attributes:
        comm: The communicator.
        rank: The rank that posted it.
        peers: The ranks that may post the other side.
        call: The call.
        proofs: Why no peer has posted the other side, and why none will.
        is_led: Whether peers wait in collectives, not for this rank, and all others may be at work.
    """

    comm: Communicator
    rank: int
    peers: tuple[int, ...]
    call: Call
    proofs: tuple[str, ...]
    is_led: bool


def may_come(case: Case, ranks: Iterable[int]) -> bool:
    """Return whether ranks that lack their half of a transfer wait nowhere, and may yet post it."""
    known = [case.run.by_rank.get(number) for number in ranks]
    return all(
        rank is not None
        and not (rank.exited or is_in_transfer(rank) or rank.rank in case.waits.heads)
        for rank in known
    )


def unanswered(case: Case, analyzer: str, *, led: bool) -> Iterable[Finding]:
    """Yield the transfers without another side where they cannot be numbered.

    Where several ranks wait for one that waits in no transfer itself, it is named.

    Args:
        case: The case.
        analyzer: The name of the analyzer that reports them.
        led: Whether another finding explains them.
    """
    found = open_transfers(case)
    waiting = {transfer.rank for transfer in found}
    ends = {peer for transfer in found for peer in transfer.peers} - waiting
    if len(ends) == 1 and len(found) > 1 and all({*one.peers} == ends for one in found):
        (end,) = ends
        yield _finding(case, analyzer, found, "consequence" if led else "cause", (end,))
        return
    behind = _newest_waits(case, ((one.rank, one.call, one.peers) for one in found)).behind(waiting)
    for transfer in found:
        is_cause = not (led or transfer.is_led or transfer.rank in behind)
        finding = _finding(case, analyzer, [transfer], "cause" if is_cause else "consequence")
        yield _unless_idle(transfer, finding)


def behind_others(case: Case, found: Sequence[StuckTransfer]) -> frozenset[int]:
    """Return the ranks in stuck transfers that wait for others at the end of their chain.

    Where each waits for a rank in what is not stuck, the last of a chain is behind no other.
    """
    known = [(one.rank, one.call, (one.peer,)) for one in found]
    ranks = {one.rank for one in found if not one.is_led}
    behind = _newest_waits(case, known).behind(ranks)
    if not ranks <= behind:
        return behind
    own = (Wait(rank, call, frozenset(peers)) for rank, call, peers in known if rank in ranks)
    return WaitGraph(own).behind(ranks)


def _newest_waits(case: Case, known: Iterable[tuple[int, Call, tuple[int, ...]]]) -> WaitGraph:
    """Return who waits for whom in the newest calls: these transfers, others, and collectives."""
    waits = {number: (one.call, one.awaited) for number, one in case.waits.pending_calls.items()}
    for rank in case.run.ranks:
        call = rank.last_call(transfers=True)
        if is_in_transfer(rank) and call is not None:
            comm = case.run.communicators[call.comm]
            if rank.rank in comm.ranks:  # a foreign file may say anything
                waits[rank.rank] = call, _peers(case, comm, rank.rank, call)
    waits |= {rank: (call, peers) for rank, call, peers in known}
    return WaitGraph(Wait(rank, call, frozenset(peers)) for rank, (call, peers) in waits.items())


def _unless_idle(transfer: OpenTransfer, finding: Finding) -> Finding:
    """Return a finding on a receive from any source as latent where all senders may be at work."""
    if transfer.call.peer is not None or finding.role != "cause" or not finding.hangs:
        return finding
    return replace(finding.with_clause(str(Half.NO_SERVER)), role="latent")


def _finding(
    case: Case,
    analyzer: str,
    found: Sequence[OpenTransfer],
    role: str,
    diverging: tuple[int, ...] = (),
) -> Finding:
    first = found[0]
    evidence = []
    for transfer in found:
        call = transfer.call
        state = f"{call_text(call)}, {call.state.word}{site_text(call)}"
        evidence.append(Half.NEWEST.of(transfer.rank, state))
        evidence += transfer.proofs
    for peer in first.peers:
        last = case.run.by_rank[peer].last_call(transfers=True)
        if last is not None:
            line = f"{last.state.word}{site_text(last)}"
            comm = case.run.communicators[last.comm]
            evidence.append(Half.LAST_CALL.of(peer, last, comm, line))
    waiting = [one.rank for one in found]
    return Finding(
        kind=_KIND,
        hangs=may_come(case, first.peers) or None,
        summary=Half.NO_OTHER_SIDE.of(
            who=who_text(case.run, waiting),
            waiting=waiting,
            one=first,
            any="" if first.call.peer is not None else Half.FROM_ANY,
            site=site_text(first.call),
            peer=who_text(case.run, first.peers),
            lack="receive" if first.call.op == "send" else "send",
        ),
        comm=first.comm,
        seq=first.call.seq if len(found) == 1 else None,
        blame=Blame.on(diverging) if diverging else Blame.among(sorted((first.rank, *first.peers))),
        odd=None if diverging else first.call,
        peers=first.call if diverging else None,
        role=role,
        analyzer=analyzer,
        evidence=tuple(dict.fromkeys(evidence)),
        inferred=(Half.SEVERAL_WAIT.of(diverging) if diverging else str(Doubt.WHICH_IS_WRONG),),
    )


def open_transfers(case: Case) -> list[OpenTransfer]:
    """Return the transfers in which ranks wait and which :func:`pairs` cannot number.

    The rank has posted nothing after it. No peer has a pending other side, and all have been
    quiet for as long.
    """
    numbered = {(pair.comm.key, pair.sender, pair.receiver) for pair in pairs(case)}
    newest = {rank.rank: rank.last_call(transfers=True) for rank in case.run.ranks}
    pending = {
        number: call
        for number, call in newest.items()
        if call is not None and call.op in _OTHER_SIDE and call.state is not State.COMPLETED
    }
    awaited = {rank: waiting.awaited for rank, waiting in case.waits.pending_calls.items()}
    found = []
    for number, call in pending.items():
        rank, comm = case.run.by_rank[number], case.run.communicators[call.comm]
        if has_damaged_transfers(rank, comm) or is_partial(rank) or number not in comm.ranks:
            continue
        peers = _peers(case, comm, number, call)
        if not peers or any(
            (comm.key, *((number, peer) if call.op == "send" else (peer, number))) in numbered
            or (peer in pending and _may_match(comm, call, number, pending[peer], peer))
            for peer in peers
        ):
            continue
        counts = _unmatched(case, comm, number, call, peers)
        ahead = {**awaited, number: peers}
        proofs = [proof_of(case, rank, case.run.by_rank[peer], call, ahead) for peer in peers]
        known = [proof for proof in proofs if proof is not None]
        if counts is not None and len(known) == len(peers):
            led = [peer for peer in peers if is_led_elsewhere(case, number, peer, call, ahead)]
            is_led = bool(led) and may_come(case, {*peers} - {*led})
            proven = (counts, *dict.fromkeys(known))
            found.append(OpenTransfer(comm, number, peers, call, proven, is_led))
    return found


def _peers(case: Case, comm: Communicator, number: int, call: Call) -> tuple[int, ...]:
    """Return the ranks with records that may post the other side of a transfer.

    For a receive from any source these are the ranks that have sent to this one before.
    """
    place = comm.ranks.index(number)
    others = {
        index: other
        for index, other in enumerate(comm.ranks)
        if other in case.run.by_rank and other != number
    }
    if call.peer is not None:
        return (others[call.peer],) if call.peer in others else ()
    return tuple(
        other
        for other in others.values()
        if any(
            one.op == "send" and one.peer == place
            for one in case.run.by_rank[other].p2p.get(comm.key, ())
        )
    )


def _may_match(comm: Communicator, call: Call, number: int, other: Call, peer: int) -> bool:
    """Return whether another rank's pending transfer may be the other side of this one."""
    return (
        (other.comm, other.op) == (call.comm, _OTHER_SIDE[call.op])
        and call.peer in (None, comm.ranks.index(peer))
        and other.peer in (None, comm.ranks.index(number))
    )


def _unmatched(
    case: Case, comm: Communicator, number: int, call: Call, peers: Sequence[int]
) -> str | None:
    """Say why a transfer has no other side; None where it may have one.

    With complete records, the number of receives differs from the number of sends to the receiver.
    Otherwise the rank has completed each transfer before this one.
    """
    receiver = peers[0] if call.op == "send" else number
    members = [case.run.by_rank[rank] for rank in comm.ranks if rank in case.run.by_rank]
    if len(members) == len(comm.ranks) and not any(
        rank.lost or is_partial(rank) or has_damaged_transfers(rank, comm) for rank in members
    ):
        place = comm.ranks.index(receiver)
        calls = {rank.rank: rank.p2p.get(comm.key, ()) for rank in members}
        received = sum(one.op == "recv" for one in calls[receiver])
        sent = sum(one.op == "send" and one.peer == place for own in calls.values() for one in own)
        more, fewer = (sent, received) if call.op == "send" else (received, sent)
        if more <= fewer:
            return None
        return Half.COUNTS.of(plural(sent, "send"), receiver, plural(received, "receive"))
    if case.timeless:
        return None  # dumps of several ranks are not of one moment
    before = [one for one in case.run.by_rank[number].p2p[comm.key] if one.seq != call.seq]
    if not before or any(one.state is not State.COMPLETED for one in before):
        return None
    return Stuck.OTHERS_COMPLETED.of(number)
