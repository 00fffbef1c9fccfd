"""Who waits for whom, where nothing moves any more.

Each rank stands in the first call of its stream that is not known to have completed. It
waits for the members of that call's communicator which have not posted it, and for those
which have, but behind another call that they stand in themselves. A rank that waits for
nobody is where a chain of waiting ends; a chain without an end is a cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclscope.analysis.waits.completion import first_pending, tells_of
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS, CREATION_OPS, ROOTED_OPS

__all__ = ["PendingCall", "Waits"]


@dataclass(frozen=True)
class PendingCall:
    """Where one rank stands.

    Attributes:
        rank: Global rank.
        call: The first call in its stream that is not known to have completed.
        comm: Its communicator.
        absent: Members that have not posted this call.
        queued: Members that have posted it, but stand in an earlier call themselves, or whose
            device has not come to it.
    """

    rank: int
    call: Call
    comm: Communicator
    absent: tuple[int, ...]
    queued: tuple[int, ...]

    @property
    def awaited(self) -> tuple[int, ...]:
        """All members it waits for."""
        return tuple(sorted({*self.absent, *self.queued}))


class Waits:
    """The wait-for graph of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ranks = run.by_rank
        self._least: dict[str, int] = {}

    @cached_property
    def heads(self) -> Mapping[int, Call]:
        """The first call of each rank that is not known to have completed."""
        heads = {}
        for rank in self._run.ranks:
            head = self._head(rank)
            if head is not None:
                heads[rank.rank] = head
        return heads

    @cached_property
    def pending_calls(self) -> Mapping[int, PendingCall]:
        """Where each rank stands that waits for another."""
        heads = self.heads
        pending_calls = {}
        # Whom a call waits for is the same for all who stand in it, who may be the whole job.
        known: dict[tuple[str, int, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for number, call in heads.items():
            if self.is_outside(number):
                continue  # behind work of its own, and not behind others
            comm = self._run.communicators[call.comm]
            concerned = _concerned(comm, call)
            where = (comm.key, call.seq, () if concerned is comm.ranks else concerned)
            if where not in known:
                known[where] = self._behind(concerned, call)
            absent, queued = (
                tuple(member for member in group if member != number) if number in group else group
                for group in known[where]
            )
            if absent or queued:
                pending_calls[number] = PendingCall(number, call, comm, absent, queued)
        return pending_calls

    def _behind(
        self, concerned: tuple[int, ...], call: Call
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns who has not posted a call, and who has but stands in an earlier one."""
        absent, queued = [], []
        for member in concerned:
            log = self._ranks[member].logs.get(call.comm) if member in self._ranks else None
            if log is None or log.calls < call.seq:
                absent.append(member)
            elif self._stands_before(member, self.heads.get(member), call) or (
                self.is_outside(member) and self.heads[member].seq == call.seq
            ):
                queued.append(member)
        return tuple(absent), tuple(queued)

    @cached_property
    def ends(self) -> dict[int, tuple[int, ...]]:
        """Ranks that others wait for and that wait for nobody, with those who wait for them.

        The latter are the ranks that wait for them directly.
        """
        ends: dict[int, set[int]] = {}
        for number, pending in self.pending_calls.items():
            for member in pending.awaited:
                if member not in self.pending_calls:
                    ends.setdefault(member, set()).add(number)
        return {member: tuple(sorted(waiting)) for member, waiting in sorted(ends.items())}

    @cached_property
    def cycle(self) -> tuple[int, ...]:
        """One shortest cycle of waiting ranks; empty when each chain has an end."""
        reached_end = set(self.ends)
        changed = True
        while changed:
            changed = False
            for number, pending in self.pending_calls.items():
                if number not in reached_end and any(r in reached_end for r in pending.awaited):
                    reached_end.add(number)
                    changed = True
        left = [number for number in self.pending_calls if number not in reached_end]
        best: tuple[int, ...] = ()
        for start in left:
            path = self._shortest_way_back(start)
            if path and (not best or len(path) < len(best)):
                best = path
        return best

    @property
    def cycle_creates(self) -> bool:
        """Whether a rank of the cycle stands in the creation of a group.

        That is new each time, so that its being new singles out nobody.
        """
        return any(self.pending_calls[number].call.op in CREATION_OPS for number in self.cycle)

    @cached_property
    def still(self) -> bool:
        """Whether the ranks stand as ranks do that wait in vain.

        Input without a clock does not say how long anybody has waited, and a snapshot of a
        running job also has ranks that are behind. But there somebody has completed what
        others have not posted, or those who wait are many different calls ahead, or the most
        are behind the few. Where all who wait for a few stand still at the same number, it is
        taken for a hang.
        """
        return bool(self.cycle) or (len(self.ends) <= len(self.pending_calls) and self.stands_still)

    @cached_property
    def stands_still(self) -> bool:
        """The same, however few they are: where it is known that none of the others moves."""
        if self.cycle:
            return True
        if not any(pending.absent for pending in self.pending_calls.values()):
            return False  # behind in being told, not in posting
        reached: dict[str, int] = {}
        for number, pending in self.pending_calls.items():
            calls = self._ranks[number].logs[pending.comm.key].calls
            if reached.setdefault(pending.comm.key, calls) != calls:
                return False
        return not self._overtaken()

    def where_most_wait(self, waiting: Sequence[int]) -> PendingCall:
        """Returns the stand, of ranks that wait, in whose call most of them are."""
        pending_calls = [self.pending_calls[number] for number in waiting]
        crowd = Counter((pending.comm.key, pending.call.seq) for pending in pending_calls)
        return max(
            pending_calls,
            key=lambda pending: (crowd[pending.comm.key, pending.call.seq], -pending.rank),
        )

    def overtaken(self, number: int) -> bool:
        """Whether another member has completed the call in which a rank stands.

        Only for input that says of each call whether it has completed. The rank has done its
        part then, and does not get to know it: its device or its watchdog has stopped. Where
        devices count, most members must have completed it: one that is ahead of all others, such
        as the root of a broadcast, singles out nobody.
        """
        head = self.heads.get(number)
        if head is None or not _tells(self._ranks[number], head.comm):
            return False
        past = 0
        for rank in self._run.members(head.comm):
            log = rank.logs[head.comm]
            if rank.rank == number or log.calls < head.seq or not _tells(rank, head.comm):
                continue
            finished = _finished(rank, head.comm)
            if finished is not None:
                past += finished >= head.seq
                if 2 * past > len(log.communicator.ranks):
                    return True
                continue
            pending, told = first_pending(log)
            if pending is not None and not told:
                pending = log.call(log.first)
            if pending is None or pending.seq > head.seq:
                return True
        return False

    def left_behind(self, comm: Communicator) -> tuple[Call, tuple[int, ...]] | None:
        """Returns a call that some members stand in and others have finished.

        Only where the devices of all members count, and none is elsewhere.

        Returns:
            The call, and those who stand in it; None where there is no such call.
        """
        heads: dict[int, Call | None] = {}
        finished = []
        for member in comm.ranks:
            rank = self._ranks.get(member)
            known = None if rank is None else _finished(rank, comm.key)
            head = heads[member] = self.heads.get(member)
            if known is None or (head is not None and head.comm != comm.key):
                return None
            finished.append(known)
        lowest = min(finished, default=0) + 1
        inside = tuple(m for m, head in heads.items() if head is not None and head.seq == lowest)
        call = heads[inside[0]] if inside and len(inside) < len(comm.ranks) else None
        if call is None or any(self._ranks[m].logs[comm.key].calls < lowest for m in comm.ranks):
            return None
        return call, inside

    def is_outside(self, number: int) -> bool:
        """Whether the device of a rank has not come to the call that the rank stands in.

        Only where calls that the device enters are counted. Its stream is behind other work.
        """
        head = self.heads.get(number)
        pending = None if head is None else self._ranks[number].device.get(head.comm)
        if head is None or pending is None:
            return False
        return pending.at == head.seq and pending.is_inside is False

    def _overtaken(self) -> bool:
        """Whether a rank has completed a call that another member had not posted."""
        posted: dict[str, int] = {}
        for rank in self._run.ranks:
            for key, log in rank.logs.items():
                posted[key] = min(posted.get(key, log.calls), log.calls)
        for rank in self._run.ranks:
            for key, log in rank.logs.items():
                if log.calls == posted[key]:
                    continue
                pending, told = first_pending(log)
                done = log.calls if pending is None else pending.seq - 1
                beyond = log.span(max(posted[key] + 1, log.first), done + 1) if told else ()
                # The root of a broadcast, or a member of a reduce, is done before its peers come.
                if any(call.op not in ROOTED_OPS for call in beyond):
                    return True
        return False

    def _shortest_way_back(self, start: int) -> tuple[int, ...]:
        frontier: list[tuple[int, ...]] = [(start,)]
        seen = {start}
        while frontier:
            path = frontier.pop(0)
            pending = self.pending_calls.get(path[-1])
            for member in pending.awaited if pending else ():
                if member == start:
                    return path
                if member not in seen:
                    seen.add(member)
                    frontier.append((*path, member))
        return ()

    def _head(self, rank: Rank) -> Call | None:
        """The first call of a rank's stream that is not known to have completed."""
        heads = []
        for key, log in rank.logs.items():
            finished = _finished(rank, key)
            if finished is not None:
                if max(finished + 1, log.first) <= log.calls:
                    heads.append(log.call(max(finished + 1, log.first)))
                continue
            pending, told = first_pending(log)
            if pending is not None and rank.details.get("tells"):
                if not told:
                    pending = log.call(log.first)  # of what has completed nothing was kept
            elif pending is not None and not (told and tells_of(log, pending)):
                # A backend that does not tell: what all have posted is taken for done.
                seq = max(self._posted_by_all(key) + 1, pending.seq if told else log.first)
                pending = log.call(seq) if seq <= log.calls else _held_in(rank, log)
            elif pending is not None and pending.replay is not None:
                pending = self._unjoined(key, log, pending.seq)
            if pending is not None and not _was_left(rank, pending):
                heads.append(pending)
        return min(heads, key=lambda call: call.position, default=None)

    def _unjoined(self, key: str, log: CallLog, first: int) -> Call | None:
        """The first call that is under way, where it is told of single calls when they complete.

        Of a replay nothing is told: what all have posted of it is taken for done.
        """
        seq = max(self._posted_by_all(key) + 1, first)
        for call in log.span(first, min(seq, log.calls + 1)):
            if call.replay is None:
                return call
        return log.call(seq) if seq <= log.calls else None

    def _posted_by_all(self, key: str) -> int:
        """How many calls every member of a communicator has posted."""
        least = self._least.get(key)
        if least is None:
            members = self._run.communicators[key].ranks or self._ranks.keys()
            logs = [self._ranks[member].logs for member in members if member in self._ranks]
            known = [own[key].calls for own in logs if key in own]
            silent = len(known) < len(self._run.communicators[key].ranks)
            least = self._least[key] = 0 if silent else min(known, default=0)
        return least

    def _stands_before(self, member: int, head: Call | None, call: Call) -> bool:
        """Whether a member stands in a call that it posted before the one in question."""
        if head is None or (head.comm, head.seq) == (call.comm, call.seq):
            return False
        log = self._ranks[member].logs[call.comm]
        if call.seq < log.first:
            return False
        posted = log.call(call.seq)
        return posted.state is not State.COMPLETED and head.position < posted.position


def _concerned(comm: Communicator, call: Call) -> tuple[int, ...]:
    """The ranks without which a call does not come to its end.

    All must create a group, but where its members meet at the store they need nobody else.
    """
    if call.op in CREATION_OPS and comm.backend == "store" and call.sizes:
        return tuple(rank for rank in comm.ranks if rank in call.sizes)
    return comm.ranks


def _finished(rank: Rank, key: str) -> int | None:
    """The last call that has finished on a rank's device; None where that is not known."""
    pending = rank.device.get(key)
    return None if pending is None else pending.finished


def _tells(rank: Rank, key: str) -> bool:
    """Whether a rank's input says of each call on a communicator whether it has completed."""
    return bool(rank.details.get("tells")) or _finished(rank, key) is not None


def _held_in(rank: Rank, log: CallLog) -> Call | None:
    """Returns the barrier that holds a rank's host, where its newest call is one."""
    call = log.call(log.calls) if log.first <= log.calls else None
    if call is None or call.op not in BARRIERS or call.state is State.COMPLETED or call.captured:
        return None
    last = rank.last_call(transfers=True)
    alone = call.replay is None and last is not None and last.position == call.position
    return call if alone else None


def _was_left(rank: Rank, call: Call) -> bool:
    """Whether a rank has posted more after a call that holds its caller until it ends.

    A creation that has raised, and was caught, ends like this.
    """
    if call.op not in CREATION_OPS:
        return False
    last = rank.last_call(transfers=True)
    return last is not None and last.position > call.position
