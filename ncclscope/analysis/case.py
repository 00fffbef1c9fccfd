"""A run with everything the analyzers ask about it, worked out once.

Analyzers are small because the comparing is done here: which members of which
communicator differ, from which call on, who of them is odd, and who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, cmp_to_key

from ncclscope.analysis.processes.device_verdict import gpu_conditions
from ncclscope.analysis.records import Records
from ncclscope.analysis.sequences.align import Divergence, side_by_side
from ncclscope.analysis.sequences.difference import Difference
from ncclscope.analysis.sequences.explain import explain
from ncclscope.analysis.sequences.groups import GroupSwap, part_outside_groups
from ncclscope.analysis.sequences.habit import PAST, habit_of
from ncclscope.analysis.sequences.skips import find_skips, trace_back
from ncclscope.analysis.sequences.survived import Survived, after_survived, find_survived
from ncclscope.analysis.sequences.swaps import Swap, find_swaps
from ncclscope.analysis.sequences.tie_breaks import suspect_of_pair, usual_group
from ncclscope.analysis.waits.endings import interrupted_after
from ncclscope.analysis.waits.order import Moment, Order
from ncclscope.analysis.waits.posting_order import PostingOrder
from ncclscope.analysis.waits.waits import PendingCall, Waits
from ncclscope.model import Rank, Run
from ncclscope.model.log import CallLog

__all__ = ["Case", "may_hold"]

DEAD_SECONDS = 2.0
"""A process whose signs of life end so much before its peers' is dead. Two beats."""


def may_hold(log: CallLog, *ops: str) -> bool:
    """Whether a log may have calls of one of these operations, as far as is known unread.

    A ring says which operations its process has posted at all.
    """
    posted: frozenset[str] | None = getattr(log, "ops", None)
    return posted is None or not posted.isdisjoint(ops)


class Case(Records):
    """One run under examination.

    Args:
        run: What was recorded.
        stall_seconds: How long nothing must have happened before waiting ranks of a process
            that has ended are held to be stuck.
        live_stall_seconds: The same for processes that still run and may just be busy.
    """

    def __init__(
        self, run: Run, *, stall_seconds: float = 2.0, live_stall_seconds: float = 30.0
    ) -> None:
        super().__init__(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
        self._recorded = run
        self.survived: tuple[Difference, ...] = ()
        """Differences after which all members completed calls; they are no cause of a hang."""
        self.uncompared: tuple[Difference, ...] = ()
        """Those of them after which the members' calls cannot be numbered alike."""
        if survived := find_survived(run):
            self.survived = tuple(self._survived(survived))
            without = {each.divergence.comm.key for each in survived if not each.logs}
            self.uncompared = tuple(each for each in self.survived if each.comm.key in without)
            self.run = after_survived(run, survived)
            self._logs.clear()

    @cached_property
    def waits(self) -> Waits:
        """Who waits for whom: as it is recorded, or as follows from the order of posting.

        The latter only where nobody is known to wait, and nothing has happened for so long that
        this may be a hang.
        """
        recorded = Waits(self.run)
        if recorded.pending_calls or self.timeless or self.divergences:
            return recorded
        quiet = [r for r in self.run.ranks if self.longest_common_quiet([r.rank]) is not None]
        if len(quiet) < 2 or any(rank.exited for rank in quiet):
            return recorded
        followed = PostingOrder(self.run)
        if not followed.cycle or self.longest_common_quiet(followed.pending_calls) is None:
            return recorded
        snapshot = self.run.snapshot
        conditions = {} if snapshot is None else gpu_conditions(snapshot)
        rests = any(conditions.get(rank) == "idle" for rank in followed.pending_calls)
        return recorded if rests else followed

    def recorded(self, key: str) -> Mapping[int, CallLog]:
        """The same as they were recorded, also before and in what the job survived."""
        if key not in {each.comm.key for each in self.survived}:
            return self.logs(key)
        return {rank.rank: rank.logs[key] for rank in self._recorded.members(key)}

    # --- differences -------------------------------------------------------------------------

    @cached_property
    def divergences(self) -> list[Divergence]:
        """For each communicator whose members differ, where they part."""
        return [
            divergence
            for divergence, _ in self._parted
            if divergence is not None and len(divergence.groups) > 1
        ]

    @cached_property
    def group_swaps(self) -> list[GroupSwap]:
        """What differs only in its order inside an NCCL group."""
        return [swap for _, swaps in self._parted for swap in swaps]

    @cached_property
    def _parted(self) -> list[tuple[Divergence | None, list[GroupSwap]]]:
        return [
            part_outside_groups(comm, self.logs(key))
            for key, comm in self.run.communicators.items()
        ]

    @property
    def described(self) -> list[Difference]:
        """All differences that findings describe: those in question, and those survived."""
        return [*self.differences, *self.survived]

    @cached_property
    def differences(self) -> list[Difference]:
        """What differs, one entry for each group of odd ranks, in order of their time."""
        found = []
        singled: set[int] = set()
        for first in self.divergences:
            divergence: Divergence | None = first
            while divergence is not None and divergence.majority:
                for group in divergence.groups[1:]:
                    singled.update(group)
                    found.append(
                        self._difference(divergence, group, divergence.majority, "majority")
                    )
                divergence = self._later(divergence)
        for divergence in self.divergences:
            if not divergence.majority:
                found += self._undecided(divergence, singled)
        diverged = {divergence.comm.key for divergence in self.divergences}
        found += find_skips(self, self.run.communicators.keys() - diverged, singled)
        in_order = sorted(found, key=cmp_to_key(self._compare))
        return sorted(in_order, key=lambda difference: not difference.odd)

    def _later(self, divergence: Divergence) -> Divergence | None:
        """Where those part further on who agreed when others left them: another cause by itself."""
        logs = {number: self._log(divergence, number) for number in divergence.majority}
        found, _ = part_outside_groups(divergence.comm, logs)
        return found if found is not None and len(found.groups) > 1 else None

    def _survived(self, survived: Sequence[Survived]) -> Iterator[Difference]:
        for each in survived:
            divergence = each.divergence
            largest, *others = divergence.groups
            if divergence.majority:
                found = [self._difference(divergence, odd, largest, "majority") for odd in others]
            else:
                found = [self._of_equal_weight(divergence)]
            yield from (replace(one, survived=each.completed) for one in found)

    def _undecided(self, divergence: Divergence, singled: set[int]) -> Iterator[Difference]:
        """Decides who is odd where no majority does."""
        touched = [group for group in divergence.groups if singled & set(group)]
        if 0 < len(touched) < len(divergence.groups):
            untouched = [group for group in divergence.groups if group not in touched]
            for group in touched:
                yield self._difference(divergence, group, untouched[0], "other communicators")
            return
        usual = usual_group(self, divergence)
        if usual is not None:
            for group in divergence.groups:
                if group != usual:
                    yield self._difference(divergence, group, usual, "same kind")
            return
        yield self._of_equal_weight(divergence)

    def _of_equal_weight(self, divergence: Divergence) -> Difference:
        """Describes what two sides did of which neither is known to be odd."""
        one, other = divergence.groups[:2]
        suspect, basis = suspect_of_pair(self, divergence) or ((), "")
        if suspect == one:
            one, other = other, one
        everybody = tuple(sorted(rank for group in divergence.groups for rank in group))
        found = self._difference(divergence, other, one, basis)
        return replace(found, odd=(), peers=everybody, suspect=suspect)

    def _difference(
        self, divergence: Divergence, odd: tuple[int, ...], peers: tuple[int, ...], basis: str
    ) -> Difference:
        sides = [max(ranks, key=lambda n: self._log(divergence, n).calls) for ranks in (odd, peers)]
        odd_log, peer_log = (self._log(divergence, number) for number in sides)
        one, other = ((self.run.by_rank[n], self._log(divergence, n)) for n in sides)
        found = explain(divergence.comm, one, other, divergence.seq)
        difference = Difference(
            comm=divergence.comm,
            seq=divergence.seq,
            exact=divergence.exact,
            odd=odd,
            peers=peers,
            odd_call=odd_log.call(divergence.seq),
            peer_call=peer_log.call(divergence.seq),
            edits=tuple(found.edits),
            aligned=tuple(side_by_side(odd_log, peer_log, divergence.seq, found.edits)),
            basis=basis,
            order=found.order,
            other=found.other,
        )
        return trace_back(self, difference, odd_log, peer_log)

    def _log(self, divergence: Divergence, rank: int) -> CallLog:
        return self.logs(divergence.comm.key)[rank]

    @cached_property
    def order(self) -> Order:
        """What happened before what."""
        return Order(self.run)

    def _compare(self, one: Difference, other: Difference) -> int:
        moments = [
            Moment(each.comm.key, each.seq, (each.odd or each.peers)[0], each.odd_call)
            for each in (one, other)
        ]
        return self.order.compare(*moments)

    @cached_property
    def swaps(self) -> list[Swap]:
        """Calls that went to another communicator: fewer here, as many more there."""
        return find_swaps(self, self.differences, self.described)

    # --- life and death ------------------------------------------------------------------------

    @cached_property
    def stalled(self) -> bool:
        """Whether ranks wait, and nothing has happened for so long that they wait in vain.

        Input without signs of life does not tell how long anybody has waited. Even then a
        circle of waiting ranks waits in vain.
        """
        waiting = [self.run.by_rank[number] for number in self.waits.pending_calls]
        if not waiting:
            return False
        if self.timeless:
            if any(rank.details.get("timed_out") for rank in self.run.ranks):
                return True
            dumped = all(rank.details.get("dumped") for rank in waiting)
            return bool(self.waits.cycle) or (
                self.waits.stands_still if self.all_quiet else dumped and self.waits.still
            )
        in_vain = self._waits_for_the_gone
        for rank in waiting:
            quiet = self.quiet_seconds(rank)
            may_be_busy = rank.alive and not in_vain
            limit = self.live_stall_seconds if may_be_busy else self.stall_seconds
            if quiet is None or quiet < limit:
                return False
        return True

    @property
    def _waits_for_the_gone(self) -> bool:
        """Whether all waiting ends at processes that are gone: these are not just late."""
        ends = [self.run.by_rank.get(number) for number in self.waits.ends]
        return bool(ends) and all(rank is not None and rank.alive is False for rank in ends)

    def is_usual(self, pending: PendingCall) -> bool:
        """Whether the call that a rank stands in is one that its communicator has seen before.

        In a circle of waiting ranks this tells a call that came in the wrong order from one
        that nobody else was ever going to make.
        """
        log = self.run.by_rank[pending.rank].logs[pending.comm.key]
        past = log.span(max(log.first, pending.call.seq - PAST), pending.call.seq)
        return any(habit_of(call) == habit_of(pending.call) for call in past)

    @cached_property
    def quiet(self) -> float | None:
        """How long the waiting ranks have waited at least, in seconds; None when unknown."""
        known = [
            self.quiet_seconds(self.run.by_rank[number]) for number in self.waits.pending_calls
        ]
        return min((seconds for seconds in known if seconds is not None), default=None)

    def how_it_ended(self, rank: Rank) -> str | None:
        """Says how a process is known to have ended before its peers; None if it is not."""
        if interrupted_after(self, rank) is not None:
            return None  # so ended the job; what its peers wait for is older
        said = rank.details.get("ended_with")
        if said:
            return f"it ended with {said}"
        if rank.exited:
            return "it ended in order"
        if rank.alive is False and any(other.alive for other in self.run.ranks):
            return "its process is gone"
        if rank.alive or rank.details.get("beating"):
            return None  # stopped or stuck; or it was copied before its peers, and lived then
        quiet = self.quiet_seconds(rank)
        others = [
            seconds
            for number in self.waits.pending_calls
            if number != rank.rank
            and (seconds := self.quiet_seconds(self.run.by_rank[number])) is not None
        ]
        if quiet is not None and others and min(others) - quiet >= DEAD_SECONDS:
            return f"its signs of life end {min(others) - quiet:.0f} s before its peers'"
        return None

    def kinds(self) -> Sequence[str]:
        """Kinds of communicators, in order of appearance."""
        return list(dict.fromkeys(comm.kind for comm in self.run.communicators.values()))
