"""Sends without a receive, and receives without a send: which are stuck, and where chains end.

Sends and receives between two ranks are paired in their order, separately for each direction, as
NCCL pairs them. gloo and MPI pair by tags, which are not recorded: there those that fit are pairs,
in whatever order they were posted. A snapshot of a running job also has transfers that only one
side has posted. A transfer is stuck when it timed out, when both ranks have been quiet for too
long, or when its peer itself waits for this rank in another call.

A receive from any source may take any rank's send, and a ring that has overwritten records lacks
the first ones. The newest call of a rank still shows that it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from ncclscope.engine.damaged import has_damaged_transfers
from ncclscope.engine.repairs.graph import Wait, WaitGraph
from ncclscope.engine.repairs.rounds import goes_a_known_way, keeps_to_rounds
from ncclscope.engine.waits.waits import (
    ended_by,
    ended_by_peers,
    failed,
    first_pending,
    is_in_transfer,
    timed_out,
)
from ncclscope.model import Blame, Call, Communicator, Finding, Rank, State
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import precedes
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.ends import End
from ncclscope.wording.names import call_text, plural, site_text, who_text
from ncclscope.wording.p2p import Half, Stuck

if TYPE_CHECKING:
    from ncclscope.engine.case import Case

STOPPED_SECONDS = 5.0
"""How much earlier than others' the heartbeat of a process that is stopped or dead ended."""


@dataclass(frozen=True)
class Pair:
    """All transfers from one rank to another.

    Attributes:
        comm: The communicator.
        sender: Global rank.
        receiver: Global rank.
        sends: The sender's calls, oldest first.
        receives: The receiver's.
    """

    comm: Communicator
    sender: int
    receiver: int
    sends: Sequence[Call]
    receives: Sequence[Call]


@dataclass(frozen=True)
class StuckTransfer:
    """A send or receive whose other side is missing.

    Attributes:
        pair: All transfers between the two ranks.
        rank: The rank that posted it.
        peer: The rank that did not post the other side.
        call: The call.
        number: Number of the transfer within the pair, from 1.
        proof: Why the transfer is stuck.
        is_led: Whether its peer waits in a collective, and not for this rank.
    """

    pair: Pair
    rank: int
    peer: int
    call: Call
    number: int
    proof: str
    is_led: bool


def is_partial(rank: Rank) -> bool:
    """Return whether sends and receives were made before recording began."""
    return rank.window or "armed_ns" in rank.details


def pairs(case: Case) -> Iterator[Pair]:
    """Yield all pairs of ranks with transfers, one for each direction."""
    used = {key for rank in case.run.ranks for key in rank.p2p}
    for key, comm in case.run.communicators.items():
        if key not in used:
            continue
        members: dict[int, tuple[int, Sequence[Call]]] = {}
        for place, number in enumerate(comm.ranks):
            rank = case.run.by_rank.get(number)
            # After an overwrite, the counterpart of the first kept call is unknown.
            if rank is None or rank.lost or is_partial(rank) or has_damaged_transfers(rank, comm):
                continue
            members[place] = (number, rank.p2p.get(key, ()))
        for one, (sender, sent) in members.items():
            sends: dict[int, list[Call]] = {}
            for call in sent:
                if call.op == "send" and call.peer is not None:
                    sends.setdefault(call.peer, []).append(call)
            for other, (receiver, received) in members.items():
                if any(call.op == "recv" and call.peer is None for call in received):
                    continue  # it receives from any source, and may have taken any of them
                receives = [call for call in received if call.op == "recv" and call.peer == one]
                if one != other and (other in sends or receives):
                    halves: tuple[Sequence[Call], Sequence[Call]] = sends.get(other, ()), receives
                    if has_tags(comm) and not all(map(fits, *halves)):
                        failed_in_it = case.how_it_ended(case.run.by_rank[receiver]) is not None
                        halves = _fitted(*halves, failed_in_it)
                    yield Pair(comm, sender, receiver, *halves)


def has_tags(comm: Communicator) -> bool:
    """Return whether a backend pairs sends and receives by tags; NCCL has none."""
    return "nccl" not in comm.backend


def fits(sent: Call, received: Call) -> bool:
    """Return whether a send and a receive have the same type and size, as far as is known."""
    same_type = sent.dtype == received.dtype or None in (sent.dtype, received.dtype)
    known = sent.numel and received.numel
    return same_type and (not known or sent.numel == received.numel)


def _fitted(
    sends: Sequence[Call], receives: Sequence[Call], failed_in_it: bool
) -> tuple[list[Call], list[Call]]:
    """Order sends and receives so that those that tags can have paired have equal places.

    gloo completes a receive that is longer than the message, and ends the process of one that is
    shorter. It completes a small send without a receive: such a send without a receive of its size
    has another tag than a receive that is pending, so that it is left out.

    Args:
        sends: The sender's calls.
        receives: The receiver's.
        failed_in_it: Whether the receiver's process ended before others.
    """
    free: dict[tuple[object, ...], deque[Call]] = {}
    for call in receives:
        free.setdefault((call.dtype, call.numel), deque()).append(call)
    fitting = [
        (call, same.popleft() if (same := free.get((call.dtype, call.numel))) else None)
        for call in sends
    ]
    left = deque(
        sorted(
            chain.from_iterable(free.values()),
            key=lambda call: (call.state is not State.COMPLETED, call.position),
        )
    )
    paired, alone = [], []
    for sent, received in fitting:
        if received is None and left:
            done = [State.COMPLETED is call.state for call in (sent, left[0])]
            too_long = failed_in_it and (sent.numel or 0) > (left[0].numel or 0)
            if done != [True, False] or too_long:
                received = left.popleft()
        if received is None:
            alone.append(sent)
        else:
            paired.append((sent, received))
    sent_first = [sent for sent, _ in paired] + ([] if left else alone)
    return sent_first, [received for _, received in paired] + [*left]


def stuck_transfers(case: Case) -> list[StuckTransfer]:
    """Return the stuck transfers, causes first."""
    first: dict[int, tuple[Pair, int, Call, int]] = {}
    for pair in pairs(case):
        found = _half(pair)
        if found is None:
            continue
        rank, peer, call, number = found
        if rank not in first or call.position < first[rank][2].position:
            first[rank] = (pair, peer, call, number)
    awaited = _awaited(case, first)
    # Sends may be ahead of a rank that waits in an earlier transfer, whose both halves are posted.
    held_up = {rank for _, _, rank in matched_waits(case)}
    stuck = []
    # A rank that failed, and whose peers lost the connection to it, is reported as such.
    lost = any(map(ended_by_peers, case.run.ranks))
    peers = {rank: one[1] for rank, one in first.items()}
    for rank, (pair, peer, call, number) in sorted(first.items()):
        if peer in held_up or (lost and failed(case.run.by_rank[_end_of(peers, peer)])):
            continue
        proof = proof_of(case, case.run.by_rank[rank], case.run.by_rank[peer], call, awaited)
        if proof is not None:
            led = is_led_elsewhere(case, rank, peer, call, awaited)
            stuck.append(StuckTransfer(pair, rank, peer, call, number, proof, led))
    waiting = {transfer.rank for transfer in stuck}
    return sorted(stuck, key=lambda transfer: transfer.peer in waiting)


def matched_waits(case: Case) -> Iterator[tuple[Pair, int, int]]:
    """Yield transfers that both sides have posted, and in which a rank waits.

    The newest call of the rank is one half, and its only call that may be pending; neither half has
    completed. The other side may have posted later calls, as after an ``isend``. Not on NCCL, which
    a call does not wait for.

    Yields:
        All transfers between the two ranks, the number of this one, and the rank that waits.
    """
    newest = {rank.rank: rank.last_call(transfers=True) for rank in case.run.ranks}
    inside = {
        n: c for n, c in newest.items() if c and c.op in P2P_OPS and c.state is not State.COMPLETED
    }
    pending: dict[int, list[tuple[Pair, int, Call, Call | None]]] = {rank: [] for rank in inside}
    for pair in pairs(case) if inside else ():
        if "nccl" in pair.comm.backend or not inside.keys() & {pair.sender, pair.receiver}:
            continue
        halves = enumerate(zip_longest(pair.sends, pair.receives), 1)
        for number, (sent, received) in halves:
            if received is not None and received.state is State.COMPLETED:
                continue  # a send may be without a wait for it
            if sent is not None and sent.state is not State.COMPLETED and pair.sender in inside:
                pending[pair.sender].append((pair, number, sent, received))
            if received is not None and pair.receiver in inside:
                pending[pair.receiver].append((pair, number, received, sent))
    for rank, own in pending.items():
        if len(own) == 1:
            pair, number, call, answer = own[0]
            if call != inside[rank] or answer is None or answer.state is State.COMPLETED:
                continue
            if fits(*((call, answer) if rank == pair.sender else (answer, call))):
                yield pair, number, rank


def _end_of(awaited: Mapping[int, int], rank: int) -> int:
    """Return the rank at which a chain of waiting ends; in a cycle, any of it."""
    seen = {rank}
    while (rank := awaited.get(rank, rank)) not in seen:
        seen.add(rank)
    return rank


def waiting_cycle(case: Case, found: Sequence[StuckTransfer]) -> tuple[tuple[int, Call], ...]:
    """Return ranks that wait for each other, by way of at least one transfer, with their calls.

    A rank waits in a stuck transfer, or in a collective before it. Each rank waits for the next,
    the last one for the first; empty where each chain of waiting has an end.
    """
    waits_for: dict[int, tuple[tuple[int, ...], Call]] = {
        rank: (pending.awaited, pending.call) for rank, pending in case.waits.pending_calls.items()
    }
    for transfer in found:
        known = waits_for.get(transfer.rank)
        if known is None or transfer.call.position < known[1].position:
            waits_for[transfer.rank] = ((transfer.peer,), transfer.call)
    for transfer in found:
        path = _way_back(waits_for, transfer.rank)
        if path:
            return tuple((rank, waits_for[rank][1]) for rank in path)
    return ()


def _way_back(waits_for: Mapping[int, tuple[tuple[int, ...], Call]], start: int) -> tuple[int, ...]:
    """Return the shortest path along which a rank waits for itself; empty if there is none."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    for path in paths:
        for following in waits_for[path[-1]][0] if path[-1] in waits_for else ():
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                paths.append((*path, following))
    return ()


def _half(pair: Pair) -> tuple[int, int, Call, int] | None:
    """Return the first transfer that only one side has posted; None where it completed."""
    sends, receives = pair.sends, pair.receives
    if len(sends) == len(receives):
        return None
    number = min(len(sends), len(receives))
    if len(sends) > number:
        found = pair.sender, pair.receiver, sends[number], number + 1
    else:
        found = pair.receiver, pair.sender, receives[number], number + 1
    return None if found[2].state is State.COMPLETED else found


def _awaited(
    case: Case, first: Mapping[int, tuple[Pair, int, Call, int]]
) -> dict[int, tuple[int, ...]]:
    """Return which ranks each rank waits for in its first pending call of any kind."""
    awaited = {rank: pending.awaited for rank, pending in case.waits.pending_calls.items()}
    for rank, (_, peer, call, _) in first.items():
        pending = case.waits.pending_calls.get(rank)
        if pending is None or (
            call.position < pending.call.position
            and not _is_past(case, case.run.by_rank[rank], call)
        ):
            awaited[rank] = (peer,)
    return awaited


def is_led_elsewhere(
    case: Case, rank: int, peer: int, call: Call, awaited: Mapping[int, tuple[int, ...]]
) -> bool:
    """Return whether the peer of a transfer waits in a collective, and not for the rank in it.

    Then the transfer has not caused that wait, and its other half may come after it.

    Args:
        case: The job.
        rank: The end whose call is pending.
        peer: The other end.
        call: That call.
        awaited: By rank, the peers for which each rank waits.
    """
    if peer not in case.waits.pending_calls:
        return False
    ends = case.run.by_rank[peer], case.run.by_rank[rank]
    return _is_past(case, ends[1], call) or not _leads(awaited, *ends)


def _is_past(case: Case, rank: Rank, call: Call) -> bool:
    """Return whether a rank completed collectives after a transfer, and is in a later one."""
    head = case.waits.heads.get(rank.rank)
    if head is None or head.position < call.position:
        return False
    for log in rank.logs.values():
        pending, known = first_pending(log)
        done = log.calls if pending is None else pending.seq - 1
        if known and done >= log.first and precedes(call, log.call(done)):
            return True
    return False


def proof_of(
    case: Case, rank: Rank, peer: Rank, call: Call, awaited: Mapping[int, tuple[int, ...]]
) -> str | None:
    """Say why a transfer is stuck; None where it may be under way, or an end of it has ended.

    Args:
        case: The job.
        rank: The end whose call is pending.
        peer: The other end.
        call: That call.
        awaited: By rank, the peers for which each rank waits.
    """
    if ended_by(call, rank, timed_out) and not failed(peer):
        return Stuck.TIMEOUT_ENDED.of(rank.rank)
    ended = case.how_it_ended(peer)
    if ended is not None and ended.code is End.EXITED and _waited_on(case, rank, call):
        return Stuck.ENDED_WITHOUT.of(peer.rank)
    if case.how_it_ended(rank) is not None or ended is not None:
        return None  # the analyzer dead_rank reports waits for an ended process
    if rank.gave_up(call):
        return Stuck.GAVE_UP.of(rank.rank)
    if not case.timeless:
        # A process that is stopped has no heartbeat, and has waited for as long as its peer.
        ends = (rank,) if is_stopped(case, peer) and not is_stopped(case, rank) else (rank, peer)
        seconds = _common_quiet(case, ends)
        return None if seconds is None else Stuck.QUIET.of((rank.rank, peer.rank), seconds)
    if any(other.details.get("timed_out") for other in case.run.ranks):
        return str(Stuck.DUMPED_AT_TIMEOUT)
    fresh = not all(other.details.get("dumped", True) for other in (rank, peer))
    if case.all_quiet:
        return str(Stuck.ALL_QUIET)
    if not fresh and awaited.get(rank.rank) == (peer.rank,) and _leads(awaited, peer, rank):
        return Stuck.WAITS_FOR_IT.of(peer.rank, rank.rank)
    return None


def _waited_on(case: Case, rank: Rank, call: Call) -> bool:
    """Return whether a rank did not leave its newest call until its process was lost or killed."""
    if call != rank.last_call(transfers=True):
        return False
    return ended_by_peers(rank) if rank.exited else _common_quiet(case, (rank,)) is not None


def is_stopped(case: Case, rank: Rank) -> bool:
    """Return whether a signal has stopped a process, or its heartbeat ended long before others'."""
    if rank.details.get("stopped"):
        return True
    if rank.exited or rank.last_seen_ns is None:
        return False
    latest = case.latest_heartbeats[rank.host]  # of its host, whose clock is the same
    return (latest - rank.last_seen_ns) / 1e9 >= STOPPED_SECONDS


def _common_quiet(case: Case, ranks: Sequence[Rank]) -> float | None:
    """Return the seconds without a call or transfer of some ranks; None below the threshold."""
    seconds = case.longest_common_quiet(rank.rank for rank in ranks)
    for rank in ranks:
        times = [call.time_ns for call in rank.last_transfers().values()]
        last = max((time for time in times if time is not None), default=None)
        if seconds is None or last is None or rank.last_seen_ns is None:
            continue
        since = max(0.0, (rank.last_seen_ns - last) / 1e9)
        limit = case.live_stall_seconds if rank.alive else case.stall_seconds
        seconds = None if since < limit else min(seconds, since)
    return seconds


def _leads(awaited: Mapping[int, tuple[int, ...]], start: Rank, end: Rank) -> bool:
    """Return whether a rank waits, directly or indirectly, for another."""
    seen, frontier = {start.rank}, [start.rank]
    while frontier:
        for number in awaited.get(frontier.pop(), ()):
            if number == end.rank:
                return True
            if number not in seen:
                seen.add(number)
                frontier.append(number)
    return False


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


_SISTERS = 2
"""Ranks that do the same with a peer, which outweigh another one."""


def short_rank(case: Case, found: Sequence[StuckTransfer]) -> tuple[int, str] | None:
    """Find the rank at which chains of unmatched transfers end, as a stage one microbatch short.

    Where at least two ranks wait for it, in transfers or collectives, it is the one that waits in
    no transfer itself, unless it waits in the collective that its rounds predict. Where one rank
    waits, or ranks of a collective wait for those of transfers and the reverse, all other ranks
    have reached the transfer whose half it lacks; in a cycle it is not the one whose call followed
    the one before it earlier already, while another rank's did not. Where all chains run into a
    cycle, its number of transfers differs from that of all others, which is the same; or all that
    do as it does with a peer have posted what it lacks.

    Returns:
        The rank, and the reason; None where no rank is identified.
    """
    waiting = {transfer.rank for transfer in found}
    awaited: dict[int, set[int]] = {}
    for transfer in found:
        awaited.setdefault(transfer.peer, set()).add(transfer.rank)
    ends = awaited.keys() - waiting
    both_sides = {rank for rank, by in awaited.items() if len(by) > 1}
    if len(ends) == 1:
        (end,) = ends
        # A rank that is in a transfer of its own may wait in it, as for one of those who wait.
        is_inside = is_in_transfer(case.run.by_rank[end])
        if end in case.waits.heads and keeps_to_rounds(case.run.by_rank[end]):
            return None
        behind = () if is_inside else case.waits.ends.get(end, ())
        own = next(transfer for transfer in found if transfer.peer == end)
        if end in case.waits.heads and (cycle := waiting_cycle(case, found)):
            ways = {rank: goes_a_known_way(case.run.by_rank[rank]) for rank, _ in cycle}
            if ways.get(end) and False in ways.values():
                return None  # another rank of the cycle went a new way
            return None if _is_ahead(case, own.pair) else _short_of_one(case, own)
        if len({*awaited[end], *behind}) > 1:
            return end, str(Half.WAITS_IN_NONE)
        return _short_of_one(case, own)
    if ends:
        return None
    reached = _furthest(case, {*waiting, *awaited})
    for rank in sorted(both_sides):
        others = {count for other, count in reached.items() if other != rank}
        if len(reached) > 2 and len(others) == 1 and reached[rank] not in others:
            (common,) = others
            side = "fewer" if reached[rank] < common else "more"
            return rank, Half.DIFFERS.of(reached[rank], side, common)
    by_rank: dict[int, list[Pair]] = {}
    for pair in pairs(case):
        by_rank.setdefault(pair.sender, []).append(pair)
        by_rank.setdefault(pair.receiver, []).append(pair)
    shorts = (_short_of_sisters(one, by_rank[one.rank]) for one in found)
    return next((short for short in shorts if short), None)


def _short_of_sisters(transfer: StuckTransfer, own: Sequence[Pair]) -> tuple[int, str] | None:
    """Return the rank that lacks its half of a transfer which all its sisters have posted.

    Sisters have posted all their transfers with the same peer at the same lines. That peer has
    posted as many of its other halves to each of them.

    Args:
        transfer: A transfer that lacks the half of a rank.
        own: All pairs of the rank that waits in it.
    """
    peer, rank, place = transfer.rank, transfer.peer, (transfer.pair.comm.key, transfer.call.op)
    posted: dict[int, dict[tuple[str, str], Sequence[Call]]] = {}
    given: dict[int, dict[tuple[str, str], int]] = {}
    for pair in own:
        sends = pair.sender == peer
        other, op = (pair.receiver, "send") if sends else (pair.sender, "recv")
        halves = (pair.sends, pair.receives) if sends else (pair.receives, pair.sends)
        given.setdefault(other, {})[pair.comm.key, op] = len(halves[0])
        posted.setdefault(other, {})[pair.comm.key, op] = halves[1]
    lines = {
        other: {call.site for calls in halves.values() for call in calls}
        for other, halves in posted.items()
    }
    sisters = [one for one in lines if one != rank and lines[one] == lines.get(rank)]
    alike = [{**given[one], place: 0} for one in (rank, *sisters)]
    if len(sisters) < _SISTERS or None in lines[rank] or any(one != alike[0] for one in alike):
        return None
    if any(len(posted[one].get(place, ())) < transfer.number for one in sisters):
        return None
    return rank, Half.SISTERS.of(sisters=sisters, number=transfer.number, peer=peer)


def _short_of_one(case: Case, transfer: StuckTransfer) -> tuple[int, str] | None:
    """Return the rank that lacks its half of a transfer which all others have reached."""
    pair, rank = transfer.pair, transfer.peer
    theirs = max(len(pair.sends), len(pair.receives))
    reached = _furthest(case, set(pair.comm.ranks) - {rank})
    others = [count for count in reached.values() if count]
    if transfer.number == 1 or len(others) < 2 or set(others) != {theirs}:
        return None
    return rank, Half.SHORT_OF.of(min(len(pair.sends), len(pair.receives)), theirs)


def _is_ahead(case: Case, pair: Pair) -> bool:
    """Return whether a pair at its distance has come to a collective after fewer transfers."""
    return any(
        max(len(one.sends), len(one.receives)) < max(len(pair.sends), len(pair.receives))
        for one in pairs(case)
        if one.comm == pair.comm
        and _distance(one) == _distance(pair)
        and {one.sender, one.receiver} <= case.waits.heads.keys()
    )


def _distance(pair: Pair) -> int:
    """Return how many places after its sender a receiver is, beginning again after the last."""
    ranks = pair.comm.ranks
    return (ranks.index(pair.receiver) - ranks.index(pair.sender)) % len(ranks)


def _furthest(case: Case, ranks: set[int]) -> dict[int, int]:
    """Return each rank's maximum number of transfers with one peer in one direction."""
    reached = dict.fromkeys(ranks, 0)
    for pair in pairs(case):
        for rank, calls in ((pair.sender, pair.sends), (pair.receiver, pair.receives)):
            if rank in reached:
                reached[rank] = max(reached[rank], len(calls))
    return reached
