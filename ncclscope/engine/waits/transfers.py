"""Sends without a receive and receives without a send that are stuck.

Sends and receives between two ranks are paired in their order, separately for each direction, as
NCCL pairs them. gloo and MPI pair by tags, which are not recorded: there those that fit are pairs,
in whatever order they were posted. A snapshot of a running job also has transfers that only one
side has posted. A transfer is stuck when it timed out, when both ranks have been quiet for too
long, or when its peer itself waits for this rank in another call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from ncclscope.engine.damaged import has_damaged_transfers
from ncclscope.engine.waits.completion import first_pending
from ncclscope.engine.waits.endings import ended_by, ended_by_peers, failed, timed_out
from ncclscope.model import Call, Communicator, Rank, State
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import precedes
from ncclscope.wording.ends import End
from ncclscope.wording.p2p import Stuck

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
