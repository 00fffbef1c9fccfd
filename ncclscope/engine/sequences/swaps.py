"""Calls that one rank posted on another communicator than its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.engine.sequences.habit import PAST, habit_of
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.log import CallLog

if TYPE_CHECKING:
    from ncclscope.engine.records import Records
    from ncclscope.engine.sequences.difference import Difference


@dataclass(frozen=True)
class Swap:
    """Calls of one rank that are extra on one communicator and missing on another.

    Attributes:
        rank: The rank that posted them.
        comm: The communicator with the extra calls.
        seq: Number of the first extra call there.
        odd_call: That call.
        peer_call: The peers' call of the same number; None when they have not reached it.
        peers: The peers.
        fewer: The communicator with the missing calls.
        missed: The first missing call, as a peer posted it; None where it is not known.
        count: Number of calls.
        difference: The difference on ``comm``; None where the rank is only ahead there.
        other: The difference on ``fewer``; None where the rank is only behind there.
        exchanged: Whether as many calls went the other way: the rank mixed up the two
            communicators.
        confidence: How sure it is; empty where that follows from the differences.
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
    confidence: str = ""

    @property
    def source(self) -> Difference | None:
        """The difference that shows it first; None where no sequences differ."""
        return self.difference or self.other

    @property
    def in_question(self) -> bool:
        """Whether the job has not survived both differences."""
        return any(each is not None and not each.survived for each in (self.difference, self.other))


def find_swaps(
    records: Records, differences: Sequence[Difference], described: Sequence[Difference]
) -> list[Swap]:
    """Find the swaps of a run, at most one for each diverging rank.

    Args:
        records: The records.
        differences: The differences that the job has not survived.
        described: All differences. The job may have survived one half of a swap.
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
        # The last extra call may lack a later call that identifies it.
        surplus = {more.surplus, _lead(records, rank, more.comm.key) or more.surplus}
        for key in rank.logs:
            if key == more.comm.key:
                continue
            fewer = by_comm.get(key)
            count = -fewer.surplus if fewer is not None else _behind(records.run, rank, key)
            if fewer is not None and fewer.inferred and _posted_on(rank.logs[key], more.odd_call):
                # The number of missing calls was inferred from calls elsewhere, which the swap
                # shifts.
                count = -(_lead(records, rank, key) or 0)
            # A rank that is behind has not skipped calls. But if it is behind by exactly the number
            # of extra calls elsewhere, and by more than one, that is no coincidence. Nor is a call
            # too many of a line that else posts on the communicator on which one is missing.
            known = fewer is not None or count > 1 or _is_of_line_on(rank, more, key)
            if count in surplus and known:
                yield _from_differences(records, rank.rank, more, fewer, key, count)
    for fewer in own:
        if fewer.surplus < 0:
            yield from _ahead_elsewhere(records, rank, fewer, by_comm)
    yield from _exchanged(rank, own)


def _exchanged(rank: Rank, own: Sequence[Difference]) -> Iterator[Swap]:
    """Yield calls on two communicators that each replace the call that belongs on the other."""
    in_order = sorted(own, key=lambda difference: difference.odd_call.position)
    for place, one in enumerate(in_order):
        for other in in_order[place + 1 :]:
            crossed = _alike(one.odd_call, other.peer_call) and _alike(
                other.odd_call, one.peer_call
            )
            sizes = {
                (each.first.inserted, each.first.deleted) if each.replaced else None
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
                    count=one.first.inserted,
                    difference=one,
                    other=other,
                    exchanged=True,
                )


def _posted_on(log: CallLog, call: Call, *, by_line: bool = False) -> int:
    """Return how often a rank lately posted calls like one, perhaps from its line, on a log."""
    near = log.span(max(log.first, log.calls - PAST), log.calls + 1)
    return sum(_alike(one, call) and (not by_line or one.line == call.line) for one in near)


def _is_of_line_on(rank: Rank, more: Difference, key: str) -> bool:
    """Return whether the line of an extra call else posts on another communicator, and only there.

    Args:
        rank: The rank.
        more: The extra call.
        key: The other communicator.
    """
    counts = [
        _posted_on(rank.logs[one], more.odd_call, by_line=True) for one in (key, more.comm.key)
    ]
    return more.odd_call.site is not None and counts[0] > 1 and counts[1] == 1


def _alike(one: Call, other: Call) -> bool:
    """Return whether two calls on different communicators are the same call."""
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
    """Yield skipped calls that are at the end of another communicator, ahead of all peers.

    A rank that skipped calls is naturally ahead elsewhere, but not by calls of a kind that the
    other communicator has never seen, and that the skipped calls are of.
    """
    for key, log in rank.logs.items():
        lead = _lead(records, rank, key)
        if key in by_comm or lead != -fewer.surplus or lead is None:
            continue
        ahead = log.span(log.calls - lead + 1, log.calls + 1)
        known = {habit_of(call) for call in log.span(log.first, log.calls - lead + 1)}
        if not ahead or any(habit_of(call) in known for call in ahead):
            continue
        if fewer.skipped and not _alike(ahead[0], fewer.peer_call):
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
    """Return how many more calls a rank made than any peer; None where counts are unknown."""
    logs: Mapping[int, CallLog] = records.recorded(key)
    others = [log.calls for number, log in logs.items() if number != rank.rank]
    if records.run.window or not others:
        return None
    return logs[rank.rank].calls - max(others)


def _behind(run: Run, rank: Rank, key: str) -> int:
    """Return how many fewer calls a rank made than most on communicators of the same kind."""
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
