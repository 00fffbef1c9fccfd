"""Two communicators entered in opposite order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.habit import PAST, Habit, expected_next, habit_of
from ncclscope.engine.waits.engine_steps import counterpart
from ncclscope.engine.waits.graph import is_stray, waiting_in
from ncclscope.engine.waits.launches import contention
from ncclscope.engine.waits.order import PostingOrder
from ncclscope.engine.waits.waits import PendingCall
from ncclscope.model import Blame, Call, Fact, Finding, Rank
from ncclscope.model.signature import CREATION_OPS
from ncclscope.model.threads import are_ordered, is_one_thread
from ncclscope.wording.cycles import Cycle
from ncclscope.wording.names import rank_text, ranks_text, same_part, site_text


class OrderCycle:
    """Ranks deadlock in a cycle, each in another communicator's call."""

    name = "order_cycle"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield one finding for the shortest deadlock cycle, where all calls themselves agree."""
        cycle = case.waits.cycle
        if not cycle or case.differences or not case.stalled:
            return
        pending_calls = case.waits.pending_calls
        listed = _other_members(case, cycle)
        diverging, against = listed or self._diverging(case, cycle)
        new = [number for number in cycle if not case.is_usual(pending_calls[number])]
        creates = case.waits.cycle_creates
        posted = isinstance(case.waits, PostingOrder)
        strayed = new == [diverging] and is_stray(case, pending_calls[new[0]])
        if strayed and not creates and not posted:
            return  # it is in a call of its own, and not early in a common one
        here = pending_calls[diverging if diverging is not None else cycle[0]]
        others = [s for s in map(pending_calls.__getitem__, cycle) if s.comm.key != here.comm.key]
        # Prefer a call that the rank itself has to post: a long cycle has others.
        there = next((s for s in others if here.rank in s.comm.ranks), next(iter(others), here))
        launches, held = contention(case.run, here, there) if posted else ((), "")
        if diverging is None:
            code = Cycle.OPEN_POSTED if posted else Cycle.OPEN
            summary = code.of(ranks=cycle, here=here, there=there)
        elif posted:
            who, stream = rank_text(case.run, diverging), "" if held else Cycle.ONE_STREAM
            summary = Cycle.POSTED.of(who=who, here=here, there=there, stream=stream)
        else:
            who, waiting = rank_text(case.run, diverging), {*cycle} - {here.rank}
            summary = Cycle.ENTERED.of(who=who, here=here, there=there, waiting=waiting)
        if not posted and not _both_posted(case, cycle, here, there):
            finding = self._never_joined(case, cycle, diverging, here, there)
            if listed is not None:
                finding = replace(finding.doubted(), inferred=against)
            if diverging is not None and new and not creates:
                finding = replace(finding, inferred=(Cycle.NEW_CALLS.of(), *finding.inferred))
            yield finding
            return
        part = next((pending.comm for pending in (here, there) if pending.comm.part), None)
        yield Finding(
            kind=self.name,
            summary=summary,
            comm=there.comm,
            seq=there.call.seq,
            blame=_blame(
                case,
                cycle,
                diverging,
                is_sure=not (case.timeless or posted or part is not None or new),
            ),
            odd=here.call,
            peers=there.call,
            role="cause",
            evidence=(*against, *_sites(case, here, there), *launches)
            if posted
            else (*self._chain(cycle, pending_calls), *against),
            inferred=(
                *(
                    (held or Cycle.ON_ONE_STREAM.of(), *self._chain(cycle, pending_calls))
                    if posted
                    else ()
                ),
                *((Cycle.NEW_ORDER.of(),) if diverging is not None and new and not creates else ()),
                *((same_part(part),) if diverging is not None and part is not None else ()),
            ),
            extent=len(cycle),
        )

    def _never_joined(
        self,
        case: Case,
        cycle: tuple[int, ...],
        diverging: int | None,
        here: PendingCall,
        there: PendingCall,
    ) -> Finding:
        """Describe ranks in calls that the others never posted, so that no order is recorded.

        A rank that is in another call than its peers may have skipped theirs, or may have posted
        it later.
        """
        waiting = waiting_in(case, there)
        own = tuple(n for n in waiting_in(case, here) if n in there.comm.ranks)
        named = diverging is not None
        waits, who, either = own, ranks_text(own), Cycle.SIDE_SKIPPED
        if diverging is not None:
            waits, who = (diverging,), rank_text(case.run, diverging)
            either = Cycle.ONE_SKIPPED
        summary = Cycle.NEVER_JOINED.of(
            who=who, there=there, waiting=waiting, own=waits, here=here, either=either
        )
        if not named and len({case.waits.pending_calls[n].comm.key for n in cycle}) > 2:
            summary = Cycle.LONG.of(cycle=cycle, waiting=waiting, there=there, own=own, here=here)
        part = next((pending.comm for pending in (here, there) if pending.comm.part), None)
        # A rank that is in another call cannot join the creation of a group.
        sure = there.call.op in CREATION_OPS and not case.timeless and part is None
        return Finding(
            kind="not_joined",
            summary=summary,
            comm=there.comm,
            seq=there.call.seq,
            blame=_blame(case, cycle, diverging, is_sure=sure),
            odd=here.call,
            peers=there.call,
            role="cause",
            evidence=tuple(self._chain(cycle, case.waits.pending_calls)),
            inferred=(
                *((same_part(part),) if named and part is not None else ()),
                *(() if named else _broken_orders(case, cycle)),
            ),
            extent=len(cycle),
        )

    def _chain(
        self, cycle: tuple[int, ...], pending_calls: Mapping[int, PendingCall]
    ) -> Iterable[str]:
        for number, awaited in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            one = pending_calls[number]
            site = site_text(one.call)
            yield Fact.of_rank(number, Cycle.WAITS.of(one=one, site=site, awaited=awaited))

    def _diverging(self, case: Case, cycle: tuple[int, ...]) -> tuple[int | None, tuple[str, ...]]:
        """Return the one rank of the cycle whose order is a minority's, and the evidence.

        A cycle of two does not itself show who diverged. But ranks with the same role enter
        communicators of the same kinds, and their orders form a majority.
        """
        pending_calls = case.waits.pending_calls
        first = pending_calls[cycle[0]]
        second = next(
            (
                pending_calls[number]
                for number in cycle
                if pending_calls[number].comm.kind != first.comm.kind
            ),
            None,
        )
        if second is None:
            return None, ()
        orders: dict[bool, list[int]] = {True: [], False: []}
        for rank in case.run.ranks:
            order = self._order(case, rank, first, second)
            if order is not None:
                orders[order].append(rank.rank)
        if len(orders[True]) == len(orders[False]):
            return None, ()
        rare = min(orders.values(), key=len)
        majority = max(orders.values(), key=len)
        found = [number for number in cycle if number in rare]
        if len(found) != 1:
            return None, ()
        return found[0], (Cycle.ORDERS.of(majority, rare),)

    def _order(
        self, case: Case, rank: Rank, first: PendingCall, second: PendingCall
    ) -> bool | None:
        """Return whether a rank posted its counterpart of ``first`` before that of ``second``."""
        kinds = {pending.comm.kind for pending in (first, second)}
        own = [log for log in rank.logs.values() if log.communicator.kind in kinds]
        if not are_ordered(own):
            return None
        places = [self._place(case, rank, pending) for pending in (first, second)]
        if -1 in places:
            return None
        before, after = places
        if before is None or after is None:
            # Of one posted and one unposted call, the posted one is first.
            return None if before is after else before is not None
        return before < after

    def _place(self, case: Case, rank: Rank, pending: PendingCall) -> int | None:
        """Return the stream position of a rank's counterpart; None not yet, -1 when it has none."""
        place: int | None = -1
        if pending.comm.creates_groups and rank.rank in pending.comm.ranks:
            place = None  # it is a member, also before its first creation
        for key, log in rank.logs.items():
            if case.run.communicators[key].kind != pending.comm.kind:
                continue
            seq: int | None = pending.call.seq
            if key != pending.comm.key:
                waiter = case.run.by_rank[pending.rank]
                own = waiter.logs[pending.comm.key]
                seq = counterpart(waiter, own, pending.call.seq, rank, log)
            if seq is None:
                continue  # it is elsewhere in the program, and shows nothing
            if log.first <= seq <= log.calls:
                return log.call(seq).position
            place = None
        return place


def _other_members(case: Case, cycle: Sequence[int]) -> tuple[int, tuple[str, ...]] | None:
    """Return the rank of a pair that creates a group of other members than most of these do.

    Groups that synchronize through the store concern their members only: both ranks came to one
    line, and most members of one of its groups are in the creation of that group.
    """
    calls = [case.waits.pending_calls[number] for number in cycle]
    if len(calls) != 2 or any(one.comm.backend != "store" for one in calls):
        return None
    if calls[0].call.site is None or calls[0].call.site != calls[1].call.site:
        return None
    come = [tuple(n for n in waiting_in(case, one) if n in one.comm.ranks) for one in calls]
    most = [2 * len(ranks) > len(one.comm.ranks) for ranks, one in zip(come, calls, strict=True)]
    if most[0] == most[1]:
        return None
    few = most.index(False)
    theirs = calls[1 - few].comm.ranks
    return cycle[few], (Cycle.MEMBERS.of(cycle[few], len(come[1 - few]), len(theirs), theirs),)


def _in_these_calls(case: Case, cycle: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks of a cycle, and those in the same calls that had to post all of them."""
    pending = [case.waits.pending_calls[rank] for rank in cycle]
    both = set.intersection(*(set(one.comm.ranks) for one in pending))
    return tuple(
        sorted({*cycle, *(both & {rank for one in pending for rank in waiting_in(case, one)})})
    )


def _both_posted(case: Case, cycle: tuple[int, ...], here: PendingCall, there: PendingCall) -> bool:
    """Return whether both orders of two calls are recorded: a rank of each side posted both."""
    orders = set()
    for number in cycle:
        calls = []
        for pending in (here, there):
            log = case.run.by_rank[number].logs.get(pending.comm.key)
            if log is not None and log.first <= pending.call.seq <= log.calls:
                calls.append(log.call(pending.call.seq))
        if len(calls) == 2 and is_one_thread(calls[0].thread, calls[1].thread):
            orders.add(calls[0].position < calls[1].position)
    return len(orders) == 2


def _sites(case: Case, *pending_calls: PendingCall) -> Iterable[str]:
    """Say from where two ranks posted the same two calls, each in its own order."""
    for pending, other in zip(pending_calls, pending_calls[::-1], strict=True):
        log = case.run.by_rank[pending.rank].logs.get(other.comm.key)
        if log is None or not log.first <= other.call.seq <= log.calls:
            continue
        then = log.call(other.call.seq)
        yield Cycle.IN_ORDER.of(
            one=pending,
            site=site_text(pending.call),
            then=then,
            comm=other.comm,
            then_site=site_text(then),
        )


def _broken_orders(case: Case, cycle: tuple[int, ...]) -> Iterable[str]:
    """Say which ranks of a cycle wait in a call before which they had always posted another.

    Args:
        case: The job.
        cycle: Ranks, of which each waits for the next one, and the last for the first.
    """
    for place, number in enumerate(cycle):
        here = case.waits.pending_calls[number]
        due = case.waits.pending_calls[cycle[place - 1]]
        one, other = ((wait.comm.key, habit_of(wait.call)) for wait in (here, due))
        rank = case.run.by_rank[number]
        if expected_next(_past_of(rank, here, due), one, other) == other:
            yield Cycle.UNUSUAL.of(number, here.comm, due.comm)


def _past_of(rank: Rank, here: PendingCall, due: PendingCall) -> list[tuple[str, Habit]]:
    """Return a rank's calls on two communicators before the one in which it waits."""
    calls = [
        call
        for key in (here.comm.key, due.comm.key)
        for call in _newest(rank, key)
        if call.position < here.call.position
    ]
    calls.sort(key=lambda call: call.position)
    return [(call.comm, habit_of(call)) for call in calls]


def _newest(rank: Rank, key: str) -> Iterable[Call]:
    log = rank.logs.get(key)
    return () if log is None else log.span(max(log.first, log.calls - PAST), log.calls + 1)


def _blame(case: Case, cycle: Sequence[int], diverging: int | None, *, is_sure: bool) -> Blame:
    """Return the blame of a cycle: on the diverging rank if it is known."""
    if diverging is None:
        return Blame.among(_in_these_calls(case, cycle))
    return Blame.on((diverging,), "certain" if is_sure else "likely")
