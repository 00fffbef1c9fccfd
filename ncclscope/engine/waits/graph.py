"""The engine's wait graph, of calls and what is outside of them; and the minority in a call.

If some members wait in a call that others never posted, the call alone only shows that the two
sides differ. The minority has left the common sequence: few absent ranks did not join, and few
waiting ranks posted an extra call if the others went on without it. Otherwise no rank is
identified. Other groups with the same role that have passed this point are stronger evidence than
numbers: either they posted the call, or they went on without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import unrecorded_kinds, uses_unrecorded
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.repairs.graph import Outside, Unfit, Wait, WaitGraph
from ncclscope.engine.repairs.queued import first_left_open, left_open_by
from ncclscope.engine.sequences.align import Divergence
from ncclscope.engine.sequences.habit import is_due
from ncclscope.engine.table import peer_of
from ncclscope.engine.waits.engine_steps import (
    counterpart,
    feeding,
    inside,
    is_behind,
    is_between_steps,
    is_in_step,
)
from ncclscope.engine.waits.noted import doing, doing_in_common, lasting
from ncclscope.engine.waits.transfers import (
    OpenTransfer,
    Pair,
    fits,
    has_tags,
    open_transfers,
    pairs,
)
from ncclscope.engine.waits.waits import (
    PENDING,
    ended_by_peers,
    failed,
    given_up_after,
    interrupted_after,
    members_of,
)
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.activities import COMM_INIT, INIT, STORE_WAIT
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import first_of_threads, holds_up, is_one_thread
from ncclscope.wording.names import comm_text
from ncclscope.wording.waits import Wait as Why

if TYPE_CHECKING:
    from ncclscope.engine.waits.waits import PendingCall

MOST_RANKS = 64
MOST_MEMBERS = 1024
"""Recorded ranks, and ranks of the job, up to which the graph is built."""

_ON_GLOO = {"reduce_scatter": "all_reduce"}
"""Operations that gloo runs as others, whose calls they meet."""

Half = tuple[Call, int, Call | None]
"""A transfer that may be pending, its other end, and that end's half, if it was posted."""
Heads = dict[int, tuple[Call, ...]]
"""The call in which each thread of a rank waits."""


def wait_graph(case: Case) -> WaitGraph:
    """Return who waits for whom: in collectives, in sends and receives, at locks and for work.

    Empty for a large job, and where calls of a window have no common numbers.
    """
    run = case.run
    if run.window or len(run.ranks) > MOST_RANKS or run.expected > MOST_MEMBERS:
        return WaitGraph(())
    damaged = (rank.rank for rank in run.ranks if DAMAGED in unrecorded_kinds(rank))
    unseen = {*run.missing, *run.unrecorded, *damaged}
    unseen.update(
        set().union(*(comm.ranks for comm in run.communicators.values())) - {*run.by_rank}
    )
    unfit = [
        Unfit(one.comm.key, one.seq, tuple(one.groups))
        for one in case.divergences
        if _blocks(case, one)
    ]
    at_locks = [*_lock_waits(case), *_socket_waits(case)]
    elsewhere = {wait.rank for wait in at_locks}
    halves = {rank: own for rank, own in _halves(case, unseen).items() if rank not in elsewhere}
    heads = {rank: own for rank, own in case.waits.heads_by_thread.items() if rank not in elsewhere}
    for one in unfit:
        for number in (number for side in one.sides for number in side):
            call = case.logs(one.comm)[number].call(one.seq)
            if call.state is not State.COMPLETED:
                _put_first(heads, number, call)
    for number, own in halves.items():
        for call in first_of_threads(half[0] for half in own):
            _put_first(heads, number, call)
    for transfer in _from_any(case).values():
        _put_first(heads, transfer.rank, transfer.call)
    _hold_up_streams(case, heads, halves)
    vanished = _vanished(case, heads) - _overrun(case, unfit)
    _await_the_gone(case, heads, halves, vanished)
    skipped = {*unseen, *vanished, *elsewhere}
    met = {*heads, *skipped}.union(one.rank for one in at_locks)
    beside = [*at_locks, *(one for one in _noted_waits(run) if one.rank not in met)]
    waits = [*_waits(case, heads, halves, unfit, skipped, vanished), *beside]
    without_work = work_waits(run, frozenset().union(*(one.awaited for one in waits)) - {*heads})
    beside, waits = [*beside, *without_work], [*waits, *without_work]
    ended = vanished.union(rank.rank for rank in run.ranks if failed(rank))
    if ended.issuperset(wait.rank for wait in waits) and _leave_open(case, heads, halves, ended):
        waits = [*_waits(case, heads, halves, unfit, skipped, vanished, ended), *beside]
    abnormal = {rank.rank for rank in case.run.ranks if failed(rank) or rank.details.get("stopped")}
    abnormal |= vanished - {rank for one in unfit for side in one.sides for rank in side}
    graph = _graph(case, waits, unfit, abnormal, unseen, vanished, heads)
    losses = case.losses.following
    ends = {one.rank for one in losses} & (graph.sinks | graph.obscure)
    if not ends and graph.released(case.losses.origins) == graph.waiting.keys():
        return graph  # what ranks wait for in their calls accounts for the losses, too
    lost = {one.rank for one in losses}
    waits = [wait for wait in waits if wait.rank not in lost]
    waits += [Wait(one.rank, one.call, one.sources, is_any=True, lost=True) for one in losses]
    return _graph(case, waits, unfit, abnormal, unseen, vanished, heads)


def _graph(
    case: Case,
    waits: Sequence[Wait],
    unfit: Sequence[Unfit],
    abnormal: Collection[int],
    unseen: Collection[int],
    vanished: Collection[int],
    heads: Heads,
) -> WaitGraph:
    known = {*(wait.rank for wait in waits), *vanished, *abnormal}
    obscure = [
        rank.rank
        for rank in case.run.ranks
        if rank.rank not in known and (rank.rank in heads or _waits_unseen(case, rank))
    ]
    return WaitGraph(waits, unfit, abnormal, unseen, obscure, vanished)


def _waits(
    case: Case,
    heads: Heads,
    halves: Mapping[int, Sequence[Half]],
    unfit: Sequence[Unfit],
    skipped: Collection[int],
    vanished: Collection[int],
    ended: Collection[int] = (),
) -> Iterator[Wait]:
    """Yield the waiting threads.

    Args:
        case: The case.
        heads: The call in which each thread waits.
        halves: The transfers in which each rank may wait.
        unfit: Calls whose members posted different ones.
        skipped: Ranks that wait for nobody.
        vanished: Ranks that ended without a record of it.
        ended: Ranks whose processes ended with the calls that they had open on NCCL.
    """
    any_source = _from_any(case)
    for number, call in ((number, call) for number, calls in heads.items() for call in calls):
        if case.waits.is_outside(number) or number in skipped:
            continue
        threads: dict[int, frozenset[int]] = {}
        is_any = number in any_source and any_source[number].call == call
        if is_any:
            awaited = {*any_source[number].peers}
        elif call.op in P2P_OPS:
            own = [
                half
                for half in halves.get(number, ())
                if is_one_thread(half[0].thread, call.thread)
            ]
            lacking = [half for half in own if half[2] is None]
            # On gloo, what both have posted ends, wherever their hosts wait.
            meets = bool(lacking) and has_tags(case.run.communicators[call.comm])
            awaited = _awaited_in_transfers(lacking if meets else own, heads)
        else:
            awaited = _awaited_by_members(case, number, call, heads)
            if number not in ended and not has_tags(case.run.communicators[call.comm]):
                awaited.update(
                    one for one in case.run.communicators[call.comm].ranks if one in ended
                )
            threads = {one: case.waits.threads_due((number, call), one) for one in awaited}
        if not is_any:
            awaited |= {one for one in vanished if _needs(case, number, case.run.by_rank[one])}
        if awaited or any((call.comm, call.seq) == (one.comm, one.seq) for one in unfit):
            yield Wait(number, call, frozenset(awaited), threads, is_any)


def _from_any(case: Case) -> dict[int, OpenTransfer]:
    """Return the receives from any source in which ranks wait."""
    return {one.rank: one for one in open_transfers(case) if len(one.peers) > 1}


def _lock_waits(case: Case) -> list[Wait]:
    """Return the waits at file locks that ranks hold, none of which waits in a collective as well.

    Where no call of any rank is recorded, also those of ranks whose stacks are in a call: they may
    wait for each rank at a lock.
    """
    found = [
        Wait(rank, None, frozenset(holders), outside=Outside.LOCK)
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


def _socket_waits(case: Case) -> list[Wait]:
    """Return the waits for the rank at the other end of a connection, as stacks show them."""
    snapshot = case.run.snapshot
    if snapshot is None or all(one.other_end < 0 for one in snapshot.workers):
        return []
    busy = {*case.waits.pending_calls, *case.run.locks}
    return [
        Wait(rank, None, frozenset({motion.worker.other_end}), outside=Outside.SOCKET)
        for rank, motion in sorted(read_motions(snapshot).items())
        if motion.worker.other_end in case.run.by_rank and rank not in busy
        if motion.condition == "still" and motion.waits == "socket"
    ]


def store_waits(run: Run) -> list[Wait]:
    """Return the waits at a store: at a barrier for all others, for a key for any that may set it.

    Those that wait for the same key set it not.
    """
    noted = {rank.rank: doing(rank) for rank in run.ranks}
    inside = {n: one for n, one in noted.items() if one is not None and one.name == STORE_WAIT}
    found = []
    for number, one in inside.items():
        same = {rank for rank, other in inside.items() if other.what == one.what}
        others = {*run.by_rank, *run.missing} - same
        if others and (one.key or one.is_barrier):
            is_any = not one.is_barrier
            found.append(
                Wait(number, None, frozenset(others), is_any=is_any, outside=Outside.STORE)
            )
    return found


def _noted_waits(run: Run) -> list[Wait]:
    """Return the waits at a store, and in the meeting of all ranks for those that never came."""
    meets = [rank.rank for rank in run.ranks if lasting(rank, INIT)]
    came = {rank.rank for rank in run.ranks if INIT in rank.activities or rank.logs}
    absent = frozenset({*run.by_rank, *run.missing} - came)
    found = [Wait(one, None, absent, outside=Outside.MEETING) for one in meets if absent]
    return [*found, *(one for one in store_waits(run) if one.rank not in meets or not absent)]


def work_waits(run: Run, ranks: Collection[int]) -> list[Wait]:
    """Return the waits of idle workers for those that their engines wait for.

    Args:
        run: The run.
        ranks: Those that others wait for. Any other worker may rest.
    """
    found: dict[int, Wait] = {}
    left = [*ranks]
    while left:
        rank = run.by_rank.get(left.pop())
        if rank is not None and rank.rank not in found and (others := feeding(run, rank)):
            found[rank.rank] = Wait(rank.rank, None, others, outside=Outside.WORK)
            left += others
    return [found[number] for number in sorted(found)]


def waiting_in_calls(case: Case) -> frozenset[int]:
    """Return the ranks that wait in collectives or transfers, not at a lock or a store."""
    inside = {wait.rank for wait in wait_graph(case).waits if wait.call is not None}
    return frozenset({*case.waits.pending_calls, *inside})


def _blocks(case: Case, divergence: Divergence) -> bool:
    """Return whether calls that differ hold their ranks up.

    Ranks that reduce in different ways get wrong data, and go on.
    """
    calls = (case.logs(divergence.comm.key)[side[0]] for side in divergence.groups)
    return len({replace(log.call(divergence.seq), redop=None).sign() for log in calls}) > 1


def _vanished(case: Case, waiting: Collection[int]) -> frozenset[int]:
    """Return the ranks that ended without a record of it, long before ranks that waited.

    Or closed the connections that others lost.
    """
    silent = [rank for rank in case.run.ranks if _is_silent(case, rank)]
    return frozenset(
        rank.rank
        for rank in silent
        if case.lost_by_peers(rank) or case.outlived_by(rank, waiting) is not None
    )


def _overrun(case: Case, unfit: Sequence[Unfit]) -> frozenset[int]:
    """Return the ranks in calls on gloo in which another member sends more than they expect.

    gloo ends the process that receives it, without a record of that. It had come to the call.
    """
    found = set[int]()
    for one in unfit:
        if case.run.communicators[one.comm].backend != "gloo":
            continue
        logs = case.logs(one.comm)
        calls = {rank: logs[rank].call(one.seq) for side in one.sides for rank in side}
        found.update(
            rank
            for rank, call in calls.items()
            if call.state is not State.COMPLETED
            and any(_overruns(other, call) for other in calls.values())
        )
    return frozenset(found)


def _overruns(other: Call, call: Call) -> bool:
    """Return whether a call on gloo sends more than another one expects that it meets."""
    kinds = [_ON_GLOO.get(one.op, one.op) for one in (other, call)]
    return kinds[0] == kinds[1] and _bits(other) > _bits(call)


def _bits(call: Call) -> int:
    """Return the size of a call's input."""
    width = re.search(r"\d+", call.dtype or "")  # that of float8_e4m3fn is 8
    return (call.numel or 0) * int(width[0] if width else 8)


def _is_silent(case: Case, rank: Rank) -> bool:
    """Return whether nothing shows that a process lives, nor how it ended."""
    if rank.exited or rank.alive or rank.details.get("beating"):
        return False
    return interrupted_after(case, case.waits, rank) is None


def _waits_unseen(case: Case, rank: Rank) -> bool:
    """Return whether a rank waits for something that is no call, or for a call of any rank.

    One that lost a connection had waited for a peer.
    """
    if ended_by_peers(rank) or _waits_overwritten(case, rank):
        return True
    if any(
        (activity := rank.activities.get(name)) is not None and activity.until_ns is None
        for name in (INIT, COMM_INIT, STORE_WAIT)
    ):
        return True
    return any(
        call.state is not State.COMPLETED and not rank.went_on(call)
        for key, calls in rank.p2p.items()
        if "nccl" not in case.run.communicators[key].backend
        for call in calls[-PENDING:]
    )


def _waits_overwritten(case: Case, rank: Rank) -> bool:
    """Return whether a rank's record of a call that a peer has not posted is overwritten."""
    for key, log in rank.logs.items():
        posted = min(one.logs[key].calls for one in case.run.members(key))
        if posted < log.calls and posted + 1 < log.first:
            return True
    return False


def _put_first(heads: Heads, number: int, call: Call) -> bool:
    """Let a call be the one in which a thread waits, unless it is in an earlier one."""
    known = heads.get(number, ())
    heads[number] = first_of_threads((*known, call))
    return heads[number] != known


def _hold_up_streams(case: Case, heads: Heads, halves: dict[int, list[Half]]) -> None:
    """Add the ranks in calls that all have posted, and that a peer's stream has not reached.

    Only on NCCL, whose calls run in the order of posting while the hosts go on.
    """
    pending = [(number, call) for number, calls in heads.items() for call in calls]
    transfers = _transfers_of(case) if pending else {}
    while pending:
        number, head = pending.pop()
        rank = case.run.by_rank[number]
        for key, log in rank.logs.items():
            comm = case.run.communicators[key]
            start = max(log.first, log.calls - PENDING)
            if "nccl" not in comm.backend or comm.creates_groups or not log.anchored:
                continue
            behind = np.asarray(log.positions(start, log.calls + 1)) > head.position
            threads = log.threads(start, log.calls + 1)
            behind &= np.array([is_one_thread(head.thread, one) for one in threads], bool)
            pending_behind = (
                start + int(place)
                for place in np.flatnonzero(behind)
                if log.call(start + int(place)).state is not State.COMPLETED
            )
            seq = next(pending_behind, None)
            if seq is None:
                continue  # it ran on another stream
            for peer in comm.ranks:
                theirs = case.run.by_rank[peer].logs.get(key) if peer in case.run.by_rank else None
                if theirs is None or not theirs.first <= seq <= theirs.calls:
                    continue
                held = theirs.call(seq)
                if held.state is State.COMPLETED:
                    continue
                if peer != number and _put_first(heads, peer, held):
                    pending.append((peer, held))
        for call, peer, answer in transfers.get(number, ()):
            if answer is None or State.COMPLETED in (call.state, answer.state):
                continue
            if holds_up(head, call) and _put_first(heads, peer, answer):
                others = [
                    half
                    for half in halves.get(peer, ())
                    if not is_one_thread(half[0].thread, answer.thread)
                ]
                halves[peer] = [*others, (answer, number, call)]
                pending.append((peer, answer))


def _transfers_of(case: Case) -> dict[int, list[Half]]:
    """Return all transfers of each rank on NCCL, with the halves of their other ends."""
    found: dict[int, list[Half]] = {}
    for pair in pairs(case):
        if "nccl" not in pair.comm.backend:
            continue
        for sent, received in zip(pair.sends, pair.receives, strict=False):
            found.setdefault(pair.sender, []).append((sent, pair.receiver, received))
            found.setdefault(pair.receiver, []).append((received, pair.sender, sent))
    return found


def _halves(case: Case, unseen: Collection[int]) -> dict[int, list[Half]]:
    """Return the transfers in which each rank may wait, those of a batch together.

    Those with a rank without a record, and those that an overwrite leaves without a number, only
    where they are a rank's newest call.
    """
    found: dict[int, list[Half]] = {}
    for pair in pairs(case):
        for sent, received in zip_longest(pair.sends, pair.receives):
            # With tags, halves of different sizes wait for another half each.
            apart = sent and received and has_tags(pair.comm) and not fits(sent, received)
            for number, peer, call, answer in (
                (pair.sender, pair.receiver, sent, received),
                (pair.receiver, pair.sender, received, sent),
            ):
                if call is not None and _may_wait(case, pair, number, call, answer):
                    found.setdefault(number, []).append((call, peer, None if apart else answer))
    for rank in case.run.ranks:
        last = rank.last_call(transfers=True)
        for call in _known_pending(case, rank):
            other = peer_of(call, case.run.communicators[call.comm])
            # One that lost the connection had no answer.
            is_open = other in unseen or (call == last and ended_by_peers(rank))
            if other is not None and is_open:
                found.setdefault(rank.rank, []).append((call, other, None))
    for one in open_transfers(case):
        if len(one.peers) == 1 and one.rank not in found:
            found[one.rank] = [(one.call, one.peers[0], None)]
    for number, halves in found.items():
        halves.sort(key=lambda half: half[0].position)
        first = halves[0][0]
        if first.group is not None:
            found[number] = [half for half in halves if half[0].group == first.group]
        elif "nccl" in case.run.communicators[first.comm].backend:
            found[number] = halves[:1]
    return found


def _await_the_gone(
    case: Case, heads: Heads, halves: dict[int, list[Half]], vanished: Collection[int]
) -> None:
    """Add the pending transfers with processes that have ended: whatever their number, none ends.

    Not on NCCL, which shows of no transfer that it is pending.
    """
    ended = {rank.rank for rank in case.run.ranks if case.how_it_ended(rank)}.union(vanished)
    for rank in case.run.ranks if ended else ():
        for call in _known_pending(case, rank) if rank.rank not in ended else ():
            other, own = peer_of(call, case.run.communicators[call.comm]), halves.get(rank.rank, [])
            if other in ended and all(half[0] != call for half in own):
                halves[rank.rank] = [*own, (call, other, None)]
                _put_first(heads, rank.rank, call)


def _leave_open(
    case: Case, heads: Heads, halves: dict[int, list[Half]], ended: Collection[int]
) -> bool:
    """Put ranks into the calls on NCCL that ended processes left open, if one waits behind them.

    Only where nobody else waits: else what a process lacked as it ended explains more.
    """
    living = [(number, calls) for number, calls in heads.items() if number not in ended]
    if not any(left_open_by(case, call, ended) for _, calls in living for call in calls):
        return False
    for rank in case.run.ranks:
        call = None if rank.rank in ended else first_left_open(case, rank, ended)
        if call is None:
            continue
        _put_first(heads, rank.rank, call)
        other = peer_of(call, case.run.communicators[call.comm])
        if call.op in P2P_OPS and other is not None:
            halves[rank.rank] = [(call, other, None)]
    _hold_up_streams(case, heads, halves)
    return True


def _known_pending(case: Case, rank: Rank) -> Iterator[Call]:
    """Yield the transfers that are known to be pending.

    On gloo no collective of the same thread follows them. Of those on NCCL only dumps know.
    """
    for key, calls in rank.p2p.items():
        tagged = has_tags(case.run.communicators[key])
        for call in calls[-PENDING:] if tagged or rank.details.get("tells") else ():
            if call.state is not State.COMPLETED and not (tagged and rank.went_on(call)):
                yield call


def _may_wait(case: Case, pair: Pair, number: int, call: Call, answer: Call | None) -> bool:
    """Return whether a rank may wait in its half of a transfer."""
    if State.COMPLETED in (call.state, answer and answer.state):
        return False
    if "nccl" in pair.comm.backend:
        return answer is None
    if case.timeless and answer is not None and fits(call, answer):
        return False  # gloo has nothing in the way of a pair; dumps do not show when it has ended
    # A send may complete without its receive, and is not waited for if its rank went on.
    return not case.run.by_rank[number].went_on(call)


def _awaited_in_transfers(halves: Sequence[Half], heads: Mapping[int, Sequence[Call]]) -> set[int]:
    """Return the other ends that have not come to some transfers."""
    return {
        peer
        for _, peer, answer in halves
        if answer is None or any(holds_up(head, answer) for head in heads.get(peer, ()))
    }


def _awaited_by_members(
    case: Case, number: int, call: Call, heads: Mapping[int, Sequence[Call]]
) -> set[int]:
    """Return the members that have not come to a collective, or are in an earlier call."""
    comm = case.run.communicators[call.comm]
    members = {*members_of(comm, call), *(case.run.missing if comm.is_partial else ())}
    return {
        member
        for member in members
        if member != number and not _came(case.run.by_rank.get(member), call, heads.get(member, ()))
    }


def _needs(case: Case, number: int, gone: Rank) -> bool:
    """Return whether a rank has posted a call to which a process that is gone will never come.

    It is in its last call as well, unless that is known to have completed.
    """
    for key, log in case.run.by_rank[number].logs.items():
        theirs = gone.logs.get(key)
        if theirs is None:
            if gone.rank in case.run.communicators[key].ranks and log.calls:
                return True
        elif log.calls > theirs.calls:
            return True
    return False


def _came(rank: Rank | None, call: Call, heads: Sequence[Call]) -> bool:
    log = None if rank is None else rank.logs.get(call.comm)
    if log is None or log.calls < call.seq:
        return False
    if not heads or call.seq < log.first:
        return True
    posted = log.call(call.seq)
    return posted.state is State.COMPLETED or not any(holds_up(head, posted) for head in heads)


@dataclass(frozen=True)
class Sides:
    """The two sides of a call that not all members have posted.

    Attributes:
        waiting: The ranks that wait in the call.
        absent: Members that never posted it and wait for nobody.
        diverging: The diverging side: ``waiting``, ``absent``, or empty where it is unknown.
        reason: The evidence of other groups; empty where numbers alone decide.
    """

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    diverging: str
    reason: str = ""

    @property
    def candidates(self) -> tuple[int, ...]:
        """The ranks of both sides."""
        return tuple(sorted({*self.waiting, *self.absent}))


def take_sides(case: Case, pending: PendingCall, absent: Sequence[int]) -> Sides:
    """Return both sides of a call that not all members have posted, and which one diverged.

    Args:
        case: The case.
        pending: The pending call of a rank that waits in it.
        absent: Members that have not posted it and wait for no rank, with or without a record.
    """
    waiting = waiting_in(case, pending)
    held_up = dependants(case, absent) | _posted(case, pending)
    by_number = ""
    if len(held_up) > len(absent):
        by_number = "absent"
    elif len(held_up) < sum(number in case.run.by_rank for number in absent):
        by_number = "waiting"  # ranks without a record may have posted it
    by_groups, reason = _same_role_elsewhere(case, pending)
    diverging = by_groups or by_number
    if not diverging and all(_is_known_elsewhere(case.run, n, waiting) for n in absent):
        diverging = "absent"  # the records show what they do, and it is no step
    if not diverging and _are_behind(case, absent, pending):
        diverging, reason = "absent", Why.ARE_BEHIND.of(absent)
    if not by_groups and _are_stopped(case, absent) and not _are_stopped(case, waiting):
        diverging = "absent"  # whatever the numbers, they cannot come before they are resumed
    here = [rank for n in absent if (rank := case.run.by_rank.get(n)) and not rank.exited]
    log = case.run.by_rank[pending.rank].logs[pending.comm.key]
    silent = all(_is_silent_minority(rank, pending) for rank in here)
    held = is_due(log, pending.call) or (silent and doing_in_common(case.run, absent) is None)
    if diverging == "waiting" and not by_groups and here and held:
        diverging = ""  # the larger number may be held up, and make this call when it comes
    if by_groups == "waiting" and by_number == "absent":
        diverging, reason = "", ""  # most wait in a call that groups of the same role never post
    return Sides(waiting, tuple(sorted(absent)), diverging, reason)


def _is_known_elsewhere(run: Run, number: int, waiting: Sequence[int]) -> bool:
    """Return whether a rank waits for a request, or is in a call of its engine without a step.

    Ranks that wait for it may be in the same call of that engine.
    """
    rank = run.by_rank.get(number)
    if rank is None:
        return False
    theirs = {run.by_rank[one].labels.get("engine") for one in waiting}
    is_apart = rank.labels.get("engine") not in theirs and not is_in_step(rank)
    return is_between_steps(rank) or (is_apart and inside(run, rank) is not None)


def _is_silent_minority(rank: Rank, pending: PendingCall) -> bool:
    """Return whether a rank has made no call since a call was posted, and waits for no request.

    Calls that are not recorded may be why it seems so.
    """
    if is_between_steps(rank) or uses_unrecorded(rank):
        return False
    last, since = rank.last_call(transfers=True), pending.call.time_ns
    return not (last and last.time_ns and since and last.time_ns > since)


def _are_stopped(case: Case, ranks: Sequence[int]) -> bool:
    """Return whether a signal has stopped the processes of all these ranks."""
    known = case.run.by_rank
    return all(n in known and known[n].details.get("stopped") for n in ranks)


def _are_behind(case: Case, ranks: Sequence[int], pending: PendingCall) -> bool:
    """Return whether these ranks have not begun the step of a call, or what it was made in."""
    known, other = case.run.by_rank, case.run.by_rank[pending.rank]
    return all(n in known and is_behind(case.run, known[n], other, pending.call) for n in ranks)


def waiting_in(case: Case, pending: PendingCall) -> tuple[int, ...]:
    """Return the ranks that wait in the same call."""
    here = pending.comm.key, pending.call.seq
    found = {one.rank for one in case.waits.all_pending if (one.comm.key, one.call.seq) == here}
    return tuple(sorted(found))


def is_stray(case: Case, pending: PendingCall) -> bool:
    """Return whether a call of a deadlock cycle is one that no other rank was going to make.

    It is of a kind that its communicator has never seen. A first call there shows that only if few
    of the members are in it: of a pair, the other one may have left it out.
    """
    if case.is_usual(pending):
        return False
    waiting = waiting_in(case, pending)
    return pending.call.seq > 1 or 2 * len(waiting) < len(pending.comm.ranks)


def dependants(case: Case, ranks: Iterable[int]) -> set[int]:
    """Return the ranks that wait for some others, directly or behind further ranks."""
    found: set[int] = set()
    reached = set(ranks)
    while True:
        more = {
            pending.rank
            for pending in case.waits.all_pending
            if pending.rank not in reached and reached.intersection(pending.awaited)
        }
        if not more:
            return found
        found |= more
        reached |= more


def _posted(case: Case, pending: PendingCall) -> set[int]:
    """Return the ranks that have posted a call, whether they wait in it or went past it."""
    logs = {rank.rank: rank.logs[pending.comm.key] for rank in case.run.members(pending.comm.key)}
    return {number for number, log in logs.items() if log.calls >= pending.call.seq}


def _same_role_elsewhere(case: Case, pending: PendingCall) -> tuple[str, str]:
    """Return the side that groups of the same kind identify as diverging, and their evidence."""
    posted: list[Communicator] = []
    went_on: list[Communicator] = []
    for key, comm in case.run.communicators.items():
        if not comm.kind or comm.kind != pending.comm.kind or {*comm.ranks} & {*pending.comm.ranks}:
            continue
        members = [rank for rank in case.run.members(key) if rank.rank in comm.ranks]
        if len(members) < len(comm.ranks) or not members:
            continue
        places = {_place(case, pending, rank, key) for rank in members}
        if places == {True}:
            posted.append(comm)
        elif places == {False} and all(_came_past(case, pending, rank) for rank in members):
            went_on.append(comm)
    if bool(posted) == bool(went_on):
        return "", ""
    names = "; ".join(comm_text(comm) for comm in (posted or went_on)[:3])
    return ("absent", Why.ALL_POSTED.of(names)) if posted else ("waiting", Why.ALL_PASSED.of(names))


def _place(case: Case, pending: PendingCall, rank: Rank, key: str) -> bool | None:
    """Return whether a rank posted its counterpart of a call; None where it is elsewhere."""
    own = case.run.by_rank[pending.rank]
    log = rank.logs[key]
    seq = counterpart(own, own.logs[pending.comm.key], pending.call.seq, rank, log)
    if seq is None or seq < log.first or seq > log.calls + 1:
        return None
    return seq <= log.calls


def _came_past(case: Case, pending: PendingCall, rank: Rank) -> bool:
    """Return whether a rank went past the point of a call without posting one.

    It has exited normally, waits in a later call for the ranks that wait in this one, or is idle
    without a pending call for as long as they have waited.
    """
    if rank.exited:
        return True
    own = [one for one in case.waits.all_pending if one.rank == rank.rank]
    if own:
        return any(pending.rank in one.absent for one in own)
    rests = case.all_quiet or case.longest_common_quiet([rank.rank]) is not None
    return rank.rank not in case.waits.heads and rests


def describe_sides(sides: Sides) -> str:
    """Say by which numbers one side diverged."""
    if sides.reason:
        return sides.reason
    if sides.diverging == "absent":
        return Why.MORE_WAIT.of(sides.absent)
    return Why.LARGER_NUMBER.of(waiting=sides.waiting, absent=sides.absent)


def describe_wait(case: Case, waiting: Sequence[int]) -> tuple[str, str]:
    """Say how ranks wait in a call, or waited until they gave it up: with their names, and after.

    Args:
        case: The case.
        waiting: Ranks that are in one pending call.
    """
    calls = case.waits.pending_calls
    found = [given_up_after(case.run.by_rank[number], calls[number].call) for number in waiting]
    known = [seconds for seconds in found if seconds is not None]
    if not known or len(known) < len(found):
        return Why.NOW.of(waiting), Why.AND_NOW.of(waiting)
    return Why.THEN.of(waiting, min(known)), Why.AND_THEN.of(min(known))
