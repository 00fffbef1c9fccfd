"""Order calls in time on hosts whose clocks differ, and where no record shows what has completed.

Clocks of two hosts may be seconds apart, so timestamps do not order calls between hosts. But a
rank that has posted two calls has posted them in an order. And a collective is one event for all
its members: of two ranks, the one that had posted fewer of their common collectives was earlier.
Where no rank shows an order, timestamps decide on one host, and stream positions between hosts.

The host enqueues calls to NCCL and goes on, and a call that all members have posted counts as
completed. That hides ranks which posted the calls of two communicators in opposite order: all
counts are equal, but no call completes. This module simulates the newest calls: each rank runs
the calls of each thread in posting order, as on one stream, and a call completes once all members
have reached it. If the simulation cannot finish, the ranks deadlock. So do ranks whose threads all
share one stream, and ended in calls that they posted in opposite order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from ncclscope.engine.waits.waits import Waits, first_pending, reports_completion
from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import CallLog, made_before, newest_of
from ncclscope.model.threads import SEVERAL, first_of_threads, is_one_thread, threads_of


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


WINDOWS = (8192, 1024)
"""Calls of a rank on a communicator that are simulated, fewer in a large job."""
LARGE = 64
"""Ranks of a large job."""
AHEAD = 2048
"""A rank that posted this many calls after one has passed it: no stream queues as many launches.
The simulated order is then not the device's, as with one stream for each thread."""
STEPS = 3
"""A rank that began this many engine steps since a call has seen the call's result."""


Item = tuple[tuple[str, int], ...]
"""One unit of the simulation: a call, as key and number, or the calls of one NCCL group."""


Queue = tuple[int, int]
"""A rank, and the place of one of its threads."""


class PostingOrder(Waits):
    """The wait-for graph that follows from the order in which calls were posted.

    Args:
        run: The run.
    """

    @cached_property
    def heads_by_thread(self) -> Mapping[int, tuple[Call, ...]]:
        """The first call of each thread that the simulation cannot complete; empty without any."""
        window = WINDOWS[len(self._run.ranks) > LARGE]
        if self._alike(window):
            return {}
        starts = self._starts(window)
        if len(starts) < 2:
            return {}
        queues = {n: [self._posted(rank, starts)] for n, rank in self._ranks.items()}
        if not self._simulate(_by_place(queues)):
            return {}
        # Rare: simulate again with threads, and with NCCL groups, whose calls have no order.
        calls = {number: self._calls(rank, starts) for number, rank in self._ranks.items()}
        heads = self._stuck({number: _by_thread(own) for number, own in calls.items()})
        if heads is not None:
            return heads
        # Threads that share a stream hang at the first calls that they post in another order than
        # their peers. What they posted later shows that they have streams of their own.
        heads = self._stuck({number: [own] for number, own in calls.items()}) or {}
        if not all(_are_last(calls[number], head) for number, (head,) in heads.items()):
            return {}
        return {number: (replace(head, thread=0),) for number, (head,) in heads.items()}

    def _stuck(
        self, queues: Mapping[int, Sequence[Sequence[Call]]]
    ) -> dict[int, tuple[Call, ...]] | None:
        """Return the calls in which the queues of ranks are stuck; None if all can finish.

        Empty where a queue has passed the call in which it would be stuck.
        """
        posted = _by_place({n: [_in_groups(calls) for calls in own] for n, own in queues.items()})
        stuck = self._simulate(posted)
        heads: dict[int, list[Call]] = {}
        for queue, (key, seq) in stuck.items():
            call = self._ranks[queue[0]].logs[key].call(seq)
            place = next(i for i, item in enumerate(posted[queue]) if (key, seq) in item)
            if len(posted[queue]) - place > AHEAD or _has_passed(self._ranks[queue[0]], call):
                return {}
            heads.setdefault(queue[0], []).append(call)
        return {n: first_of_threads(calls) for n, calls in heads.items()} if stuck else None

    def _starts(self, window: int) -> dict[str, int]:
        """Return the first simulated call of each communicator that reports no completion."""
        starts = {}
        for key, comm in self._run.communicators.items():
            members = list(self._run.members(key))
            logs = [rank.logs[key] for rank in members]
            even = len({log.calls for log in logs}) == 1 and len(logs) == len(comm.ranks) > 1
            if not even or comm.creates_groups or not all(log.anchored for log in logs):
                continue
            open_calls = [seq for rank in members if (seq := _first_unknown(rank, key)) is not None]
            if len(open_calls) == len(members):
                starts[key] = max(logs[0].calls - window + 1, *open_calls)
        return starts

    def _alike(self, window: int) -> bool:
        """Return whether all ranks used communicators of the same kinds in the same order.

        Most runs do. With one communicator of each kind on each rank, no deadlock is possible
        then: ranks that share a call reach it at the same point.
        """
        orders = {
            rank.orders[window] if rank.orders else order_of(rank, window)
            for rank in self._run.ranks
        }
        return None not in orders and len(orders - {""}) < 2

    def _posted(self, rank: Rank, starts: Mapping[str, int]) -> list[Item]:
        """Return the calls of a rank in the order in which it posted them."""
        placed = []
        for key in starts.keys() & rank.logs.keys():
            positions = rank.logs[key].positions(starts[key], rank.logs[key].calls + 1)
            placed += [(at, key, starts[key] + place) for place, at in enumerate(positions)]
        return [((key, seq),) for _, key, seq in sorted(placed)]

    def _calls(self, rank: Rank, starts: Mapping[str, int]) -> list[Call]:
        """Return the calls themselves."""
        calls = [
            call
            for key, log in rank.logs.items()
            if key in starts
            for call in log.span(starts[key], log.calls + 1)
        ]
        return sorted(calls, key=lambda call: call.position)

    def _simulate(self, posted: Mapping[Queue, Sequence[Item]]) -> dict[Queue, tuple[str, int]]:
        """Return the first call of each queue that cannot complete."""
        members = {key: len(comm.ranks) for key, comm in self._run.communicators.items()}
        arrived: Counter[tuple[str, int]] = Counter()
        waiting: dict[tuple[str, int], list[Queue]] = defaultdict(list)
        left = {number: iter(items) for number, items in posted.items()}
        now: dict[Queue, Item] = dict.fromkeys(posted, ())
        ready = list(posted)
        while ready:
            number = ready.pop()
            while True:
                open_call = _first_open(now[number], arrived, members)
                if open_call is not None:
                    waiting[open_call].append(number)
                    break
                following = next(left[number], None)
                if following is None:
                    del now[number]
                    break
                now[number] = following
                for call in following:
                    arrived[call] += 1
                    if arrived[call] == members[call[0]]:
                        ready += waiting.pop(call, ())
        return {
            number: found
            for number, item in now.items()
            if (found := _first_open(item, arrived, members)) is not None
        }


def _by_place(queues: Mapping[int, Sequence[Sequence[Item]]]) -> dict[Queue, Sequence[Item]]:
    return {
        (number, place): items for number, own in queues.items() for place, items in enumerate(own)
    }


def _by_thread(calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls of each thread; all in one where some thread is not known."""
    known = [call for call in calls if call.thread != SEVERAL]
    threads = {call.thread for call in known}
    return [
        *([known] if 0 in threads else ([c for c in known if c.thread == t] for t in threads)),
        *([call] for call in calls if call.thread == SEVERAL),
    ]


def _are_last(calls: Sequence[Call], head: Call) -> bool:
    """Return whether each thread posted one call at most from the head of a rank on."""
    threads = [call.thread for call in calls if call.position >= head.position]
    return len({*threads}) == len(threads)


def _in_groups(calls: Sequence[Call]) -> list[Item]:
    """Return calls, with those of one NCCL group in one item."""
    items: list[Item] = []
    last: object = None
    for call in calls:
        number = None if call.replay is None else call.replay.number
        group = None if call.group is None else (call.group, call.graph, number)
        own = ((call.comm, call.seq),)
        if group is not None and group == last:
            items[-1] += own
        else:
            items.append(own)
        last = group
    return items


def order_of(rank: Rank, window: int) -> str | None:
    """Return a digest of the order in which a rank used its communicators.

    Args:
        rank: The rank.
        window: Number of newest calls on each communicator that count.

    Returns:
        16 hex digits; empty where all communicators of the rank report completion, and None where
        it has several communicators of one kind.
    """
    keys = [key for key in rank.logs if _first_unknown(rank, key) is not None]
    kinds = [rank.logs[key].communicator.kind or key for key in keys]
    if not keys or len({*kinds}) < len(kinds):
        return None if keys else ""
    positions = []
    for key in keys:
        log = rank.logs[key]
        positions.append(log.positions(max(log.first, log.calls - window + 1), log.calls + 1))
    inverse = np.unique(np.array(kinds), return_inverse=True)[1]
    taken = np.repeat(inverse.astype(np.uint32), [len(found) for found in positions])
    order = taken[np.argsort(np.concatenate(positions), kind="stable")]
    names = "|".join(sorted(kinds)).encode()
    return blake2b(names + order.tobytes(), digest_size=8).hexdigest()


def _first_open(
    item: Item, arrived: Mapping[tuple[str, int], int], members: Mapping[str, int]
) -> tuple[str, int] | None:
    """Return the first call that not all members have reached."""
    return next((call for call in item if arrived[call] < members[call[0]]), None)


def _first_unknown(rank: Rank, key: str) -> int | None:
    """Return the first call whose completion is not reported; None where there is none."""
    log = rank.logs[key]
    call, known = first_pending(log)
    if call is None or key in rank.device or rank.details.get("tells"):
        return None
    if not known:
        return log.first
    return None if reports_completion(log, call) else call.seq


def _has_passed(rank: Rank, call: Call) -> bool:
    """Return whether a rank must have passed the call that the simulation leaves it in."""
    steps = newest_of(rank.steps, STEPS)
    return len(steps) == STEPS and steps[0].position > call.position
