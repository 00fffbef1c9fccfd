"""Calls that one rank made on another communicator than its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.analysis.sequences.habit import PAST, habit_of
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.log import CallLog

if TYPE_CHECKING:
    from ncclscope.analysis.records import Records
    from ncclscope.analysis.sequences.difference import Difference

__all__ = ["Swap", "find_swaps"]


@dataclass(frozen=True)
class Swap:
    """As many calls too many on one communicator as there are too few on another.

    Attributes:
        rank: Who made them.
        comm: The communicator that got them.
        seq: The first of them there.
        odd_call: That call.
        peer_call: What the peers posted under its number; None when they have not come so far.
        peers: The peers.
        fewer: The communicator that misses them.
        missed: The first call that is missing there, as a peer posted it, where known.
        count: How many.
        difference: What differs on ``comm``; None where it is only ahead.
        other: What differs on ``fewer``; None where it is only behind.
        exchanged: Whether as many calls went the other way: the two communicators were taken for
            each other.
    """

    rank: int
    comm: Communicator
    seq: int
    odd_call: Call
    peer_call: Call | None
    peers: tuple[int, ...]
    fewer: Communicator
    missed: Call | None
    count: int
    difference: Difference | None
    other: Difference | None
    exchanged: bool = False

    @property
    def in_question(self) -> bool:
        """Whether the job has not survived all of it."""
        return any(each is not None and not each.survived for each in (self.difference, self.other))


def find_swaps(
    records: Records, differences: Sequence[Difference], described: Sequence[Difference]
) -> list[Swap]:
    """Finds the swaps of a run, at most one for each rank and communicator.

    The job may have survived one half of a swap. It has not survived a swap of which the other half
    is in question.
    """
    found: list[Swap] = []
    for rank in sorted({rank for difference in differences for rank in difference.odd}):
        own = [difference for difference in described if difference.odd == (rank,)]
        swaps = (
            swap for swap in _swaps_of(records, records.run.by_rank[rank], own) if swap.in_question
        )
        found += list(swaps)[:1]
    return found


def _swaps_of(records: Records, rank: Rank, own: Sequence[Difference]) -> Iterator[Swap]:
    by_comm = {difference.comm.key: difference for difference in own}
    for more in own:
        if more.surplus <= 0:
            continue
        # The last of the calls too many may have nothing after it to be told by.
        surplus = {more.surplus, _lead(records, rank, more.comm.key) or more.surplus}
        for key in rank.logs:
            if key == more.comm.key:
                continue
            fewer = by_comm.get(key)
            count = -fewer.surplus if fewer is not None else _behind(records.run, rank, key)
            if fewer is not None and fewer.inferred and _usual_on(rank, key, more.odd_call):
                # How many are missing was concluded from calls elsewhere, which the swap shifts.
                count = -(_lead(records, rank, key) or 0)
            # Being behind is no omission. But to be behind by just as many calls as were made
            # too many elsewhere, and by more than one, is no coincidence.
            if count in surplus and (fewer is not None or count > 1):
                yield _from_differences(records, rank.rank, more, fewer, key, count)
    for fewer in own:
        if fewer.surplus < 0:
            yield from _ahead_elsewhere(records, rank, fewer, by_comm)
    yield from _exchanged(rank, own)


def _exchanged(rank: Rank, own: Sequence[Difference]) -> Iterator[Swap]:
    """Calls on two communicators, each in place of just what belongs on the other."""
    in_order = sorted(own, key=lambda difference: difference.odd_call.position)
    for place, one in enumerate(in_order):
        for other in in_order[place + 1 :]:
            crossed = _alike(one.odd_call, other.peer_call) and _alike(
                other.odd_call, one.peer_call
            )
            sizes = {
                (each.first.put, each.first.left) if each.replaced else None
                for each in (one, other)
            }
            if crossed and len(sizes) == 1 and None not in sizes:
                yield Swap(
                    rank=rank.rank,
                    comm=one.comm,
                    seq=one.seq,
                    odd_call=one.odd_call,
                    peer_call=one.peer_call,
                    peers=one.peers,
                    fewer=other.comm,
                    missed=other.peer_call,
                    count=one.first.put,
                    difference=one,
                    other=other,
                    exchanged=True,
                )


def _usual_on(rank: Rank, key: str, call: Call) -> bool:
    """Whether a rank posts such calls on another communicator, too."""
    log = rank.logs[key]
    return any(
        _alike(call, own) for own in log.span(max(log.first, log.calls - PAST), log.calls + 1)
    )


def _size(difference: Difference) -> tuple[int, int]:
    return difference.first.put, difference.first.left


def _alike(one: Call, other: Call) -> bool:
    """Whether two calls on different communicators are the same call."""
    return habit_of(one) == habit_of(other) and one.numel == other.numel


def _from_differences(
    records: Records, rank: int, more: Difference, fewer: Difference | None, key: str, count: int
) -> Swap:
    return Swap(
        rank=rank,
        comm=more.comm,
        seq=more.seq,
        odd_call=more.odd_call,
        peer_call=more.peer_call,
        peers=more.peers,
        fewer=records.run.communicators[key],
        missed=fewer.peer_call if fewer is not None and fewer.skipped else None,
        count=count,
        difference=more,
        other=fewer,
    )


def _ahead_elsewhere(
    records: Records, rank: Rank, fewer: Difference, by_comm: Mapping[str, Difference]
) -> Iterator[Swap]:
    """Calls left out here that stand at the end of another communicator, before all peers.

    To be ahead is natural for a rank that left something out; to be ahead by calls of a kind
    that this communicator has never seen is not.
    """
    for key, log in rank.logs.items():
        lead = _lead(records, rank, key)
        if key in by_comm or lead != -fewer.surplus or lead is None:
            continue
        ahead = log.span(log.calls - lead + 1, log.calls + 1)
        usual = {habit_of(call) for call in log.span(log.first, log.calls - lead + 1)}
        if not ahead or any(habit_of(call) in usual for call in ahead):
            continue
        comm = records.run.communicators[key]
        yield Swap(
            rank=rank.rank,
            comm=comm,
            seq=ahead[0].seq,
            odd_call=ahead[0],
            peer_call=None,
            peers=tuple(member for member in comm.ranks if member != rank.rank),
            fewer=fewer.comm,
            missed=fewer.peer_call if fewer.skipped else None,
            count=lead,
            difference=None,
            other=fewer,
        )


def _lead(records: Records, rank: Rank, key: str) -> int | None:
    """Calls a rank made more than any peer; None where counts mean nothing."""
    logs: Mapping[int, CallLog] = records.recorded(key)
    others = [log.calls for number, log in logs.items() if number != rank.rank]
    if records.run.window or not others:
        return None
    return logs[rank.rank].calls - max(others)


def _behind(run: Run, rank: Rank, key: str) -> int:
    """Calls a rank made fewer than most ranks did on communicators of the same kind."""
    if run.window:
        return 0
    kind = run.communicators[key].kind
    counts = Counter(
        log.calls
        for other in run.ranks
        for other_key, log in other.logs.items()
        if run.communicators[other_key].kind == kind and other.rank != rank.rank
    )
    return counts.most_common(1)[0][0] - rank.logs[key].calls if counts else 0
