"""A run with all comparisons that analyzers ask for, each computed once.

It answers which members of which communicator differ, from which call on, which of them
diverged, and which rank waits for which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, cmp_to_key
from itertools import chain

from ncclscope.engine.processes.device_verdict import gpu_conditions
from ncclscope.engine.records import DEAD_SECONDS, Records, have_one_time
from ncclscope.engine.repairs.losses import Losses
from ncclscope.engine.sequences.align import Divergence, side_by_side
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.explain import explain
from ncclscope.engine.sequences.groups import GroupSwap, part_outside_groups
from ncclscope.engine.sequences.habit import PAST, habit_of
from ncclscope.engine.sequences.skips import find_skips, trace_back
from ncclscope.engine.sequences.strayed import find_strayed
from ncclscope.engine.sequences.survived import (
    Survived,
    after_survived,
    find_further,
    find_survived,
)
from ncclscope.engine.sequences.swaps import Swap, find_swaps
from ncclscope.engine.sequences.tie_breaks import (
    broke_pattern,
    is_new_there,
    is_outvoted,
    majority_of_kind,
    suspect_of_pair,
)
from ncclscope.engine.waits.noted import doing, raised
from ncclscope.engine.waits.order import Moment, Order, PostingOrder
from ncclscope.engine.waits.waits import (
    PENDING,
    PendingCall,
    Waits,
    ended_by_peers,
    given_up_after,
    interrupted_after,
    is_in_transfer,
    lost_by_peers,
    reports_completion,
    timed_out,
    without_note,
)
from ncclscope.model import Rank, Run, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import ROOTED_OPS
from ncclscope.wording.ends import End, Ending

AT_ONCE_SECONDS = 1.0
"""An exit that follows an exception so closely follows from it."""
MOST_SURVIVED = 8
"""Differences of one communicator after which all went on, each of which is a finding."""


def may_hold(log: CallLog, *ops: str) -> bool:
    """Return whether a log may hold calls of one of these operations, without reading it.

    A ring's header lists the operations that its process has posted.
    """
    posted: frozenset[str] | None = getattr(log, "ops", None)
    return posted is None or not posted.isdisjoint(ops)


class Case(Records):
    """One run under examination.

    Args:
        run: What was recorded.
        stall_seconds: Seconds without a call after which waiting ranks, whose processes have
            ended, are reported as stuck.
        live_stall_seconds: The same for processes that still run and may just be busy.
    """

    def __init__(
        self, run: Run, *, stall_seconds: float = 2.0, live_stall_seconds: float = 30.0
    ) -> None:
        super().__init__(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
        self._recorded = run
        self.survived: tuple[Difference, ...] = ()
        """Differences after which all members completed calls, so that they caused no hang."""
        self.uncompared: tuple[Difference, ...] = ()
        """Survived differences after which the members' calls cannot be numbered alike."""
        if survived := find_survived(run):
            self.survived = tuple(self._survived(survived))
            without = {each.divergence.comm.key for each in survived if not each.logs}
            self.uncompared = tuple(each for each in self.survived if each.comm.key in without)
            self.run = after_survived(run, survived)
            self._logs.clear()

    @cached_property
    def waits(self) -> Waits:
        """Which rank waits for which: as recorded, or as the order of posting implies.

        The latter applies only where no rank is known to wait and all have been quiet for long
        enough to be hung.
        """
        recorded = Waits(self.run)
        if recorded.pending_calls or self.timeless or self.divergences:
            return recorded
        quiet = [r for r in self.run.ranks if self.longest_common_quiet([r.rank]) is not None]
        if len(quiet) < 2 or any(rank.exited for rank in self.run.ranks):
            return recorded
        followed = PostingOrder(self.run)
        if not followed.cycle or self.longest_common_quiet(followed.pending_calls) is None:
            return recorded
        snapshot = self.run.snapshot
        conditions = {} if snapshot is None else gpu_conditions(snapshot)
        rests = any(conditions.get(rank) == "idle" for rank in followed.pending_calls)
        return recorded if rests else followed

    def recorded(self, key: str) -> Mapping[int, CallLog]:
        """Return the members' logs as recorded, including the differences that were survived."""
        if key not in {each.comm.key for each in self.survived}:
            return self.logs(key)
        return {rank.rank: rank.logs[key] for rank in self._recorded.members(key)}

    # --- differences -------------------------------------------------------------------------

    @cached_property
    def divergences(self) -> list[Divergence]:
        """The first divergence of each communicator whose members differ."""
        return [
            divergence
            for divergence, _ in self._divergences
            if divergence is not None and len(divergence.groups) > 1
        ]

    @cached_property
    def group_swaps(self) -> list[GroupSwap]:
        """Calls that differ only in their order inside an NCCL group."""
        return [swap for _, swaps in self._divergences for swap in swaps]

    @cached_property
    def _divergences(self) -> list[tuple[Divergence | None, list[GroupSwap]]]:
        return [
            part_outside_groups(comm, self.logs(key))
            for key, comm in self.run.communicators.items()
        ]

    @property
    def described(self) -> list[Difference]:
        """All differences that findings describe, the survived ones included."""
        return [*self.differences, *self.survived]

    @cached_property
    def differences(self) -> list[Difference]:
        """The differences in order of time, one for each group of diverging ranks."""
        found = []
        singled: set[int] = set()
        for first in self.divergences:
            divergence: Divergence | None = first
            while divergence is not None and divergence.majority:
                if broke_pattern(self, divergence):
                    found.append(self._of_equal_weight(divergence))
                    break
                few = divergence.groups[1:]
                kept = [group for group in few if is_new_there(self, divergence, group)]
                if kept and majority_of_kind(self, divergence) in kept:
                    # The other replicas did what the smaller side did, as all had before.
                    found += self._undecided(divergence, singled)
                    break
                for group in few:
                    singled.update(group)
                    basis = "new_call" if group in kept else "majority"
                    found.append(self._difference(divergence, group, divergence.majority, basis))
                divergence = self._later(divergence)
        for divergence in self.divergences:
            if not divergence.majority:
                found += self._undecided(divergence, singled)
        diverged = {divergence.comm.key for divergence in self.divergences}
        found += find_skips(self, self.run.communicators.keys() - diverged, singled)
        in_order = sorted(found, key=cmp_to_key(self._compare))
        return sorted(in_order, key=lambda difference: not difference.odd)

    def tell_anew(self, differences: Sequence[Difference]) -> None:
        """Take other differences for those of the run, before anything follows from them."""
        self.__dict__["differences"] = [*differences]

    def _later(self, divergence: Divergence) -> Divergence | None:
        """Return the next divergence within the majority, which is a cause of its own."""
        logs = {number: self._log(divergence, number) for number in divergence.majority}
        found, _ = part_outside_groups(divergence.comm, logs)
        return found if found is not None and len(found.groups) > 1 else None

    def _survived(self, survived: Sequence[Survived]) -> Iterator[Difference]:
        for each in survived:
            first = each.divergence
            last, before, shown = first.seq + each.completed, 0, 0
            further = find_further(each, self.logs(first.comm.key))  # it searches as it is asked
            for divergence in chain((first,), further):
                largest, *others = divergence.groups
                if divergence.majority:
                    found = [
                        self._difference(divergence, few, largest, "majority") for few in others
                    ]
                else:
                    found = [self._of_equal_weight(divergence)]
                for one in found:
                    yield replace(one, survived=last - divergence.seq, after=before)
                before, shown = divergence.seq, shown + len(found)
                if shown >= MOST_SURVIVED or not all(one.keeps_numbers for one in found):
                    break  # where numbers are shifted, all later calls differ

    def _undecided(self, divergence: Divergence, singled: set[int]) -> Iterator[Difference]:
        """Yield differences whose diverging side no majority of the members identifies."""
        touched = [group for group in divergence.groups if singled & set(group)]
        if 0 < len(touched) < len(divergence.groups):
            untouched = [group for group in divergence.groups if group not in touched]
            for group in touched:
                yield self._difference(divergence, group, untouched[0], "other_communicators")
            return
        majority = majority_of_kind(self, divergence)
        if majority is not None:
            for group in divergence.groups:
                if group != majority:
                    yield self._difference(divergence, group, majority, "same_kind")
            return
        yield self._of_equal_weight(divergence)

    def _of_equal_weight(self, divergence: Divergence) -> Difference:
        """Describe a difference between two sides, neither of which is known to have diverged."""
        one, other = divergence.groups[:2]
        suspect, basis = suspect_of_pair(self, divergence) or ((), "")
        if divergence.majority:
            suspect, basis = one, "pattern"
        if suspect == one:
            one, other = other, one
        found = self._difference(divergence, other, one, basis)
        return found.undecided([rank for group in divergence.groups for rank in group], suspect)

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
            rival=found.rival,
            rounds=found.rounds,
            outvoted=basis == "majority" and is_outvoted(self, divergence, odd),
        )
        return trace_back(self, difference, odd_log, peer_log)

    def _log(self, divergence: Divergence, rank: int) -> CallLog:
        return self.logs(divergence.comm.key)[rank]

    @cached_property
    def order(self) -> Order:
        """The order of the run's calls."""
        return Order(self.run)

    def _compare(self, one: Difference, other: Difference) -> int:
        moments = [
            Moment(each.comm.key, each.seq, (each.odd or each.peers)[0], each.odd_call)
            for each in (one, other)
        ]
        return self.order.compare(*moments)

    @cached_property
    def swaps(self) -> list[Swap]:
        """Calls posted on the wrong communicator: missing on one, extra on another."""
        found = find_swaps(self, self.differences, self.described)
        known = {swap.rank for swap in found}
        strayed = find_strayed(self, self.differences, stalled=self.stalled)
        return [*found, *(swap for swap in strayed if swap.rank not in known)]

    # --- life and death ------------------------------------------------------------------------

    @cached_property
    def stalled(self) -> bool:
        """Whether ranks wait and all have been quiet for long enough to be hung.

        Input without heartbeats does not show how long a rank has waited. Even then a cycle of
        waiting ranks is a deadlock.
        """
        waiting = [self.run.by_rank[number] for number in self.waits.pending_calls]
        if not waiting:
            return False
        # Waits of any length that ended so: too long for the program, or in a deadlock.
        if all(map(timed_out, waiting)):
            return True
        if all(map(ended_by_peers, self.run.ranks)) and self.waits.cycle:
            return True
        if self.timeless:
            if any(rank.details.get("timed_out") for rank in self.run.ranks):
                return True
            dumped = all(rank.details.get("dumped") for rank in waiting)
            cycle = [self.run.by_rank[number] for number in self.waits.cycle]
            # A host posts calls while others are pending: right after a call, it may post the next.
            if cycle and all(rank.details.get("dumped", True) for rank in cycle):
                return True
            return self.waits.is_stuck if self.all_quiet else dumped and self.waits.still
        if self.may_be_over:
            return False
        gone = self._awaits_only_the_gone
        for rank in waiting:
            quiet = self.still_seconds(rank)
            may_be_busy = rank.alive and not rank.exited and not gone
            if not may_be_busy:
                waited = given_up_after(rank, self.waits.pending_calls[rank.rank].call)
                quiet = max(quiet or 0.0, waited) if waited is not None else quiet
            limit = self.live_stall_seconds if may_be_busy else self.stall_seconds
            if quiet is None or quiet < limit:
                return False
        return True

    @cached_property
    def may_be_over(self) -> bool:
        """Whether only ranks without a record are missing, which may have come to each call.

        Nobody is known to wait for their completion: the waiting ranks went on and exited, or all
        ranks rest alike.
        """
        ranks, waits = self.run.by_rank, self.waits
        if not waits.ends or any(number in waits.ends for number in ranks):
            return False
        left = all(
            ranks[pending.rank].ended_well and ranks[pending.rank].went_on(pending.call)
            for pending in waits.all_pending
        )
        return left or self._may_be_idle

    @property
    def _may_be_idle(self) -> bool:
        """Whether ranks that wait for none rest, too, and those without a record had come before.

        The completion of the pending calls would not be recorded.
        """
        waits, resting = self.waits, [rank for rank in self.run.ranks if not rank.exited]
        return (
            len(resting) == len(self.run.ranks) > len(waits.pending_calls)
            and self.longest_common_quiet(rank.rank for rank in resting) is not None
            and all(map(self._has_come, waits.ends))
            and not any(
                reports_completion(self.run.by_rank[one.rank].logs[one.comm.key], one.call)
                for one in waits.all_pending
            )
        )

    def _has_come(self, number: int) -> bool:
        """Return whether a call that a rank had to join has completed on another one."""
        return any(
            call.state is State.COMPLETED and call.op not in ROOTED_OPS
            for rank in self.run.ranks
            for log in rank.logs.values()
            if number in log.communicator.ranks
            for call in log.span(max(log.first, log.calls - PENDING), log.calls + 1)
        )

    @property
    def _awaits_only_the_gone(self) -> bool:
        """Whether every chain of waiting ends at a process that is gone, not just late."""
        ends = [self.run.by_rank.get(number) for number in self.waits.ends]
        return bool(ends) and all(rank is not None and rank.alive is False for rank in ends)

    def is_usual(self, pending: PendingCall) -> bool:
        """Return whether a pending call is of a kind that its communicator has seen before.

        In a deadlock cycle this distinguishes a call in the wrong order from a call that no other
        rank was going to make.
        """
        log = self.run.by_rank[pending.rank].logs[pending.comm.key]
        past = log.span(max(log.first, pending.call.seq - PAST), pending.call.seq)
        return any(habit_of(call) == habit_of(pending.call) for call in past)

    @cached_property
    def latest_heartbeats(self) -> dict[str, int]:
        """The latest heartbeat on each host, in nanoseconds by its clock."""
        latest: dict[str, int] = {}
        for rank in self.run.ranks:
            latest[rank.host] = max(latest.get(rank.host, 0), rank.last_seen_ns or 0)
        return latest

    @cached_property
    def losses(self) -> Losses:
        """The connections that ranks lost, and the ends that account for it."""
        return Losses(self)

    @cached_property
    def quiet(self) -> float | None:
        """Seconds for which all waiting ranks have waited at least; None when unknown."""
        known = [
            self.quiet_seconds(self.run.by_rank[number]) for number in self.waits.pending_calls
        ]
        return min((seconds for seconds in known if seconds is not None), default=None)

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Ranks that wait in a call or transfer, at a store, or for their peers to join."""
        notes = {rank.rank: doing(rank) for rank in self.run.ranks}
        noted = (number for number, one in notes.items() if one is not None and not one.is_work)
        transfers = (rank.rank for rank in self.run.ranks if is_in_transfer(rank))
        return frozenset((*self.waits.pending_calls, *noted, *transfers))

    def lost_by_peers(self, rank: Rank) -> bool:
        """Return whether peers failed because a process was gone; see :mod:`.waits.endings`."""
        closers, explained = self.losses.closers, self.losses.explained
        return lost_by_peers(self, self.waits, rank, closers=closers, explained=explained)

    def how_it_ended(self, rank: Rank) -> Ending | None:
        """Return how a process ended before its peers; None if it is not known to have ended."""
        if interrupted_after(self, self.waits, rank) is not None:
            return None  # a signal stopped the whole job, which already hung
        error = rank.details.get("ended_with")
        if error:
            return Ending(End.WITH, str(error))
        if rank.exited:
            last = raised(self, rank)
            if last is not None and last[1] < AT_ONCE_SECONDS:  # a launcher caught it
                return Ending(End.RAISED, last[0])
            return Ending(End.EXITED)
        if rank.alive is False and any(other.alive for other in self.run.ranks):
            return Ending(End.GONE)
        if self.lost_by_peers(rank):
            return without_note(rank)
        if rank.alive or rank.details.get("beating"):
            return None  # stopped or stuck, or its ring was copied earlier, while it ran
        seconds = self.outlived_by(rank, self.waiting)
        return None if seconds is None else Ending(End.HEARTBEAT, seconds)

    def outlived_by(self, rank: Rank, waiting: Collection[int]) -> float | None:
        """Return for how many seconds waiting ranks lived on after a rank's last heartbeat.

        Several may have ended with it: then a gap divides them from those that lived on.

        Returns:
            None where no rank lived on for long enough.
        """
        own = self.quiet_seconds(rank)
        if own is None:
            return None
        others = {
            number: seconds - own
            for number in waiting
            if number != rank.rank
            and (seconds := self.quiet_seconds(self.run.by_rank[number])) is not None
        }
        later = {number: more for number, more in others.items() if more >= DEAD_SECONDS}
        least = min(later.values(), default=0.0)
        together = [more for number, more in others.items() if number not in later]
        gap = all(least - more >= DEAD_SECONDS for more in together)
        return least if later and gap and self.may_have_ended_before(rank, later) else None

    def may_have_ended_before(self, rank: Rank, others: Iterable[int]) -> bool:
        """Return False where one clock, or two that agree, show a process lived as long as others.

        Otherwise its last call may just have been later than theirs.
        """
        seen = rank.last_seen_ns
        return not any(
            seen is not None
            and one.last_seen_ns is not None
            and abs(one.last_seen_ns - seen) < DEAD_SECONDS * 1e9
            and have_one_time(rank, one)
            for one in map(self.run.by_rank.__getitem__, others)
        )

    def kinds(self) -> Sequence[str]:
        """Return the kinds of communicators, in order of appearance."""
        return list(dict.fromkeys(comm.kind for comm in self.run.communicators.values()))
