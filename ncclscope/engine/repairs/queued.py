"""What may keep a call on NCCL from running: calls that its members enqueued before it.

Kernels run in the order of posting, those of one stream behind each other. Which communicators and
threads share a stream is not recorded: any earlier call of a rank may come first.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from ncclscope.engine.case import Case
from ncclscope.engine.table import peer_of
from ncclscope.engine.waits.transfers import has_tags, pairs
from ncclscope.engine.waits.waits import PENDING, first_pending
from ncclscope.model import Call, Rank, State
from ncclscope.model.log import CallLog, newest_of
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import precedes

Place = tuple[int, int]
"""A rank, and the position of one of its calls."""
Answers = Mapping[Place, tuple[int, Call | None]]
"""The other end of each transfer, and what it posted."""

_END = sys.maxsize


@dataclass(frozen=True)
class Enqueued:
    """A call of a rank that may run before another one.

    Attributes:
        rank: Global rank.
        call: The call.
        parts: Ranks that have a part in it.
        is_whole: Whether each of them has posted its part, as far as is known.
    """

    rank: int
    call: Call
    parts: Collection[int]
    is_whole: bool


def up_to(case: Case, call: Call) -> Iterator[Enqueued]:
    """Yield a call on NCCL, and the open ones that may come before it on some rank.

    Args:
        case: The case.
        call: The call, as one member posted it.
    """
    if has_tags(case.run.communicators[call.comm]):
        return
    answers = _answers(case)
    reached: dict[int, int] = {}
    ahead = list(_places(case, call))
    while ahead:
        number, position = ahead.pop()
        if position <= reached.get(number, -1):
            continue
        reached[number] = position
        for one in _open_before(case, number, position):
            parts: Collection[int] = case.run.communicators[one.comm].ranks
            if one.op in P2P_OPS:
                peer, answer = answers.get((number, one.position), (None, None))
                peer = peer_of(one, case.run.communicators[one.comm]) if peer is None else peer
                parts = parts if peer is None else (number, peer)
                places = {number: position}
                if answer is not None and peer is not None:
                    places[peer] = answer.position
            else:
                places = dict(_places(case, one))
            yield Enqueued(number, one, parts, len(places) == len(parts))
            # Who has not posted its part may do so behind all that it has posted.
            ahead += [(part, places.get(part, _END)) for part in parts if part in case.run.by_rank]


def left_open_by(case: Case, call: Call, ended: Collection[int]) -> frozenset[int]:
    """Return those of some ranks that have a part in a call on NCCL, or in one that it is behind.

    Kernels end with their process: what it had not completed by then, nobody completes.

    Args:
        case: The case.
        call: The call, as one member posted it.
        ended: Ranks whose processes have ended.
    """
    comm = case.run.communicators[call.comm]
    if not ended or has_tags(comm):
        return frozenset()
    parts = {*comm.ranks}.union(*(one.parts for one in up_to(case, call)))
    return frozenset(ended) & parts


def first_left_open(case: Case, rank: Rank, ended: Collection[int]) -> Call | None:
    """Return the first open call of a rank on NCCL in which ended processes had a part."""
    done, found = _done(rank), list[Call]()
    for key, log in rank.logs.items():
        theirs = [case.run.by_rank[one].logs.get(key) for one in ended]
        if has_tags(log.communicator) or not any(theirs):
            continue
        found += log.span(max(log.first, log.calls - PENDING), log.calls + 1)
    for key, calls in rank.p2p.items():
        comm = case.run.communicators[key]
        if not has_tags(comm):
            found += [one for one in newest_of(calls, PENDING) if peer_of(one, comm) in ended]
    left = (one for one in found if not _is_done(one, done))
    return min(left, key=lambda one: one.position, default=None)


def _open_before(case: Case, number: int, position: int) -> Iterator[Call]:
    """Yield a rank's last open call before a position on each communicator, and its transfers."""
    rank = case.run.by_rank[number]
    done = _done(rank)
    for log in rank.logs.values():
        one = None if has_tags(log.communicator) else _last_before(log, position)
        if one is not None and not _is_done(one, done):
            yield one
    for key, calls in rank.p2p.items():
        for one in () if has_tags(case.run.communicators[key]) else newest_of(calls, PENDING):
            if one.position < position and not _is_done(one, done):
                yield one


def _places(case: Case, call: Call) -> Iterator[Place]:
    """Yield where members have posted a call; -1 where the record is overwritten."""
    for number in case.run.communicators[call.comm].ranks:
        rank = case.run.by_rank.get(number)
        log = None if rank is None else rank.logs.get(call.comm)
        if log is not None and call.seq <= log.calls:
            yield number, log.call(call.seq).position if call.seq >= log.first else -1


def _last_before(log: CallLog, position: int) -> Call | None:
    """Return a rank's last call on a communicator before a position, among its newest ones."""
    if log.communicator.creates_groups or not log.anchored:
        return None
    start = max(log.first, log.calls - PENDING)
    place = bisect_left(list(log.positions(start, log.calls + 1)), position)
    return log.call(start + place - 1) if place else None


def _done(rank: Rank) -> list[Call]:
    """Return a rank's last calls that are known to have completed."""
    return [one for key, log in rank.logs.items() if (one := _last_done(rank, key, log))]


def _last_done(rank: Rank, key: str, log: CallLog) -> Call | None:
    """Return the last call of a log that is known to have completed."""
    device = rank.device.get(key)
    if device is not None:
        done = device.finished or 0
    else:
        pending, known = first_pending(log)
        done = (log.calls if pending is None else pending.seq - 1) if known else 0
    return log.call(done) if log.first <= done <= log.calls else None


def _is_done(call: Call, done: list[Call]) -> bool:
    """Return whether a call has completed: calls of a thread run in order."""
    return call.state is State.COMPLETED or any(one == call or precedes(call, one) for one in done)


def _answers(case: Case) -> Answers:
    found: dict[Place, tuple[int, Call | None]] = {}
    for pair in pairs(case):
        for sent, received in zip_longest(pair.sends, pair.receives):
            if sent is not None:
                found[pair.sender, sent.position] = pair.receiver, received
            if received is not None:
                found[pair.receiver, received.position] = pair.sender, sent
    return found
