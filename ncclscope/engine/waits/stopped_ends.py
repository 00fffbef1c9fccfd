"""The rank at which chains of transfers end: one that is stopped, or that posted fewer of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclscope.engine.repairs.departures import goes_a_known_way, keeps_to_rounds
from ncclscope.engine.waits.completion import is_in_transfer
from ncclscope.engine.waits.transfers import (
    Pair,
    StuckTransfer,
    is_stopped,
    pairs,
    waiting_cycle,
)
from ncclscope.model import Blame, Call, Fact, Finding
from ncclscope.wording.names import who_text
from ncclscope.wording.p2p import Half

if TYPE_CHECKING:
    from ncclscope.engine.case import Case

_SISTERS = 2
"""Ranks that do the same with a peer, which outweigh another one."""


def stopped_end(case: Case, found: Sequence[StuckTransfer], analyzer: str) -> Finding | None:
    """Return a finding on the ranks that cannot post their half; None if all processes run.

    Args:
        case: The case.
        found: The stuck transfers.
        analyzer: Name of the analyzer that reports it.
    """
    own = [one for one in found if is_stopped(case, case.run.by_rank[one.peer])]
    ranks = tuple(sorted({one.peer for one in own}))
    if not own or len(ranks) > len({one.rank for one in found} - {*ranks}):
        return None
    known = all(case.run.by_rank[number].details.get("stopped") for number in ranks)
    waiting = tuple(sorted({one.rank for one in own}))
    comm = own[0].pair.comm
    return Finding(
        kind="not_joined" if known else "dead_rank",
        summary=Half.STOPPED.of(
            who=who_text(case.run, ranks),
            ranks=ranks,
            state=Half.BY_SIGNAL if known else Half.NO_HEARTBEAT,
            waiting=waiting,
            comm=comm,
        ),
        comm=comm,
        seq=None,  # transfers are not collectives, and are numbered separately
        blame=Blame.on(ranks),
        odd=case.run.by_rank[ranks[0]].last_call(transfers=True),
        peers=own[0].call,
        role="cause",
        analyzer=analyzer,
        evidence=tuple(Fact.of_call(Half.LACKS.of(one), [one.rank]) for one in own),
        inferred=(str(Half.HELD_UP),),
    )


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
