"""Order calls in time on hosts whose clocks differ.

Clocks of two hosts may be seconds apart, so timestamps do not order calls between hosts. But a
rank that has posted two calls has posted them in an order. And a collective is one event for all
its members: of two ranks, the one that had posted fewer of their common collectives was earlier.
Where no rank shows an order, timestamps decide on one host, and stream positions between hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import CallLog, made_before
from ncclscope.model.threads import is_one_thread, threads_of


@dataclass(frozen=True)
class Moment:
    """A call as something that happens.

    Attributes:
        key: The communicator's key.
        seq: The call's number there.
        rank: A rank that posted it.
        call: What it posted; None where it posted nothing.
    """

    key: str
    seq: int
    rank: int
    call: Call | None


class Order:
    """The order of calls in a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # Sorting compares differences pairwise, and asks for the same positions each time.
        self._positions: dict[tuple[int, str, int], tuple[int, int] | None] = {}
        self._threads: dict[tuple[int, str], frozenset[int]] = {}
        self._made: dict[tuple[int, str, int], int] = {}

    def compare(self, one: Moment, other: Moment) -> int:
        """Return a negative number where ``one`` came first, a positive one for ``other``."""
        if (one.key, one.seq) == (other.key, other.seq):
            return one.rank - other.rank
        votes = self._votes(one, other) or self._progress(one, other)
        if votes:
            return votes
        times = self._times(one, other)
        if times is not None and times[0] != times[1]:
            return -1 if times[0] < times[1] else 1
        places = [_place(moment) for moment in (one, other)]
        if places[0] != places[1]:
            return -1 if places[0] < places[1] else 1
        keys = [(moment.key, moment.seq, moment.rank) for moment in (one, other)]
        return -1 if keys[0] < keys[1] else 1

    def _votes(self, one: Moment, other: Moment) -> int:
        """Return the number of ranks that posted ``other`` first minus those that did not."""
        if one.key == other.key:
            return one.seq - other.seq
        votes = 0
        if self._run.window:
            return 0  # call numbers of a window are valid within one comparison only
        for rank in self._run.members(one.key):
            first = self._position(rank, one)
            second = self._position(rank, other)
            if first is not None and second is not None and is_one_thread(first[1], second[1]):
                votes += (first > second) - (first < second)
        return votes

    def _progress(self, one: Moment, other: Moment) -> int:
        """Return on how many more communicators ``other`` had made fewer calls than ``one``."""
        by_rank = self._run.by_rank
        if self._run.window or one.call is None or other.call is None:
            return 0
        if one.rank not in by_rank or other.rank not in by_rank:
            return 0
        votes = 0
        for key, log in by_rank[one.rank].logs.items():
            theirs = by_rank[other.rank].logs.get(key)
            if theirs is None or not self._shows_progress(one, log, other, theirs):
                continue
            made = self._made_before(one.rank, log, one.call.position)
            made -= self._made_before(other.rank, theirs, other.call.position)
            votes += (made > 0) - (made < 0)
        return votes

    def _shows_progress(self, one: Moment, log: CallLog, other: Moment, theirs: CallLog) -> bool:
        """Return whether one thread of each rank posted its call and all on a communicator."""
        for moment, own in ((one, log), (other, theirs)):
            if moment.call is None or not moment.call.thread:
                continue
            known = (moment.rank, own.communicator.key)
            if known not in self._threads:
                self._threads[known] = threads_of(own)
            thread = moment.call.thread
            if not all(is_one_thread(thread, other) for other in self._threads[known]):
                return False
        return True

    def _position(self, rank: Rank, moment: Moment) -> tuple[int, int] | None:
        """Return position and thread of a rank's call; None where it is missing or overwritten."""
        known = (rank.rank, moment.key, moment.seq)
        if known not in self._positions:
            log = rank.logs.get(moment.key)
            kept = log is not None and log.first <= moment.seq <= log.calls
            one = moment.seq, moment.seq + 1
            self._positions[known] = (
                (log.positions(*one)[0], log.threads(*one)[0]) if log is not None and kept else None
            )
        return self._positions[known]

    def _made_before(self, rank: int, log: CallLog, position: int) -> int:
        known = (rank, log.communicator.key, position)
        if known not in self._made:
            self._made[known] = made_before(log, position)
        return self._made[known]

    def _times(self, one: Moment, other: Moment) -> tuple[int, int] | None:
        """Return both timestamps in ns where they are by one clock, else None."""
        hosts = [
            self._run.by_rank[moment.rank].host if moment.rank in self._run.by_rank else None
            for moment in (one, other)
        ]
        if None in hosts or hosts[0] != hosts[1]:
            return None
        first, second = (moment.call.time_ns if moment.call else None for moment in (one, other))
        return None if first is None or second is None else (first, second)


def _place(moment: Moment) -> int:
    return moment.call.position if moment.call is not None else moment.seq
