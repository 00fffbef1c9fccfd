"""Who waits for whom on a backend that does not tell when a call has completed.

The host posts calls to NCCL and goes on; what all members have posted is taken for done. That
hides ranks which posted the calls of two communicators in opposite order: all counts are equal,
and nothing ever ends. Here the calls at the end of the records are carried out on paper, those
of each rank in the order in which it posted them, as on one stream, and each as soon as all
members have come to it. Where that comes to no end, ranks stand in a circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b

import numpy as np

from ncclscope.analysis.waits.completion import first_pending, tells_of
from ncclscope.analysis.waits.waits import Waits
from ncclscope.model import Call, Rank
from ncclscope.model.log import newest_of

__all__ = ["WINDOWS", "PostingOrder", "order_of"]

WINDOWS = (8192, 1024)
"""Calls of a rank on a communicator that are carried out on paper, the fewer in a large job."""
LARGE = 64
"""Ranks of one."""
AHEAD = 2048
"""Who has posted so many calls after one has come past it: no stream takes as many launches at
once. Then the order on paper is not that on the device, as with a stream for each thread."""
STEPS = 3
"""Who has begun as many steps of its engine since has seen the results of the first."""


Item = tuple[tuple[str, int], ...]
"""What a rank comes through as a whole: a call, as key and number, or those of an NCCL group."""


class PostingOrder(Waits):
    """The wait-for graph that follows from the order in which calls were posted.

    Args:
        run: The run.
    """

    @cached_property
    def heads(self) -> Mapping[int, Call]:
        """The first call of each rank that does not end; empty where all come to their end."""
        window = WINDOWS[len(self._run.ranks) > LARGE]
        if self._alike(window):
            return {}
        starts = self._starts(window)
        if len(starts) < 2:
            return {}
        stuck = self._carry_out({n: self._posted(rank, starts) for n, rank in self._ranks.items()})
        if not stuck:
            return {}
        # Seldom: looked at again, with the groups of NCCL, whose calls have no order.
        posted = {n: self._grouped(rank, starts) for n, rank in self._ranks.items()}
        stuck = self._carry_out(posted)
        heads = {n: self._ranks[n].logs[key].call(seq) for n, (key, seq) in stuck.items()}
        for number, call in heads.items():
            place = next(i for i, item in enumerate(posted[number]) if stuck[number] in item)
            if len(posted[number]) - place > AHEAD or _has_passed(self._ranks[number], call):
                return {}
        return heads

    def _starts(self, window: int) -> dict[str, int]:
        """For each communicator that does not tell, the first call that is carried out."""
        starts = {}
        for key, comm in self._run.communicators.items():
            members = list(self._run.members(key))
            logs = [rank.logs[key] for rank in members]
            even = len({log.calls for log in logs}) == 1 and len(logs) == len(comm.ranks) > 1
            if not even or comm.creates_groups or not all(log.anchored for log in logs):
                continue
            untold = [seq for rank in members if (seq := _first_untold(rank, key)) is not None]
            if len(untold) == len(members):
                starts[key] = max(logs[0].calls - window + 1, *untold)
        return starts

    def _alike(self, window: int) -> bool:
        """Whether all ranks took communicators of the same kinds in the same order.

        That is so in most runs, and where each rank has one communicator of a kind nobody can
        stand then: those who share a call come to it at the same place.
        """
        orders = {
            rank.orders[window] if rank.orders else order_of(rank, window)
            for rank in self._run.ranks
        }
        return None not in orders and len(orders - {""}) < 2

    def _posted(self, rank: Rank, starts: Mapping[str, int]) -> list[Item]:
        """Returns the calls of a rank in the order in which it posted them."""
        placed = []
        for key in starts.keys() & rank.logs.keys():
            positions = rank.logs[key].positions(starts[key], rank.logs[key].calls + 1)
            placed += [(at, key, starts[key] + place) for place, at in enumerate(positions)]
        return [((key, seq),) for _, key, seq in sorted(placed)]

    def _grouped(self, rank: Rank, starts: Mapping[str, int]) -> list[Item]:
        """The same, with what one NCCL group holds in one."""
        calls = [
            call
            for key in starts.keys() & rank.logs.keys()
            for call in rank.logs[key].span(starts[key], rank.logs[key].calls + 1)
        ]
        items: list[Item] = []
        last: object = None
        for call in sorted(calls, key=lambda call: call.position):
            number = None if call.replay is None else call.replay.number
            group = None if call.group is None else (call.group, call.graph, number)
            own = ((call.comm, call.seq),)
            if group is not None and group == last:
                items[-1] += own
            else:
                items.append(own)
            last = group
        return items

    def _carry_out(self, posted: Mapping[int, Sequence[Item]]) -> dict[int, tuple[str, int]]:
        """Returns the first call of each rank that does not come to its end."""
        members = {key: len(comm.ranks) for key, comm in self._run.communicators.items()}
        arrived: Counter[tuple[str, int]] = Counter()
        waiting: dict[tuple[str, int], list[int]] = defaultdict(list)
        left = {number: iter(items) for number, items in posted.items()}
        now: dict[int, Item] = dict.fromkeys(posted, ())
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


def order_of(rank: Rank, window: int) -> str | None:
    """Returns a digest of the order in which a rank took its communicators.

    Args:
        rank: The rank.
        window: How many calls on each communicator count, from the end.

    Returns:
        It is empty where the rank has none that does not tell, and None where it has several of
        a kind.
    """
    keys = [key for key in rank.logs if _first_untold(rank, key) is not None]
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
    """Returns the first call that not all members have come to."""
    return next((call for call in item if arrived[call] < members[call[0]]), None)


def _first_untold(rank: Rank, key: str) -> int | None:
    """Returns the first call of which nothing tells whether it has completed; None for no such."""
    log = rank.logs[key]
    call, told = first_pending(log)
    if call is None or key in rank.device or rank.details.get("tells"):
        return None
    if not told:
        return log.first
    return None if tells_of(log, call) else call.seq


def _has_passed(rank: Rank, call: Call) -> bool:
    """Whether a rank must have come past a call that it stands in on paper."""
    steps = newest_of(rank.steps, STEPS)
    return len(steps) == STEPS and steps[0].position > call.position
