"""Two communicators entered in opposite order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.waits.engine_steps import counterpart
from ncclscope.analysis.waits.minority import waiting_in
from ncclscope.analysis.waits.posting_order import PostingOrder
from ncclscope.analysis.waits.waits import PendingCall
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    rank_text,
    ranks_text,
    same_part,
    sentence,
    site_text,
    verb,
)
from ncclscope.model import Finding, Rank
from ncclscope.model.signature import CREATION_OPS

__all__ = ["OrderCycle"]


_NEW_ORDER = (
    "another order, since such calls are new there: a rank that takes one communicator for the "
    "other, as when it made them in another order, stands like this, too"
)
_NEW_CALLS = (
    "which of the two it is, since such calls are new there: a rank that takes one communicator "
    "for the other, as when it made them in another order, stands like this, too"
)
_ON_ONE_STREAM = (
    "that calls run in the order in which a rank posted them, as on one stream, and that they have "
    "not ended: the backend does not tell"
)


class OrderCycle:
    """Ranks wait for each other in a circle, each in another communicator's call."""

    name = "order_cycle"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields one finding for the shortest circle, where all calls themselves agree."""
        cycle = case.waits.cycle
        if not cycle or case.differences or not case.stalled:
            return
        pending_calls = case.waits.pending_calls
        odd, against = self._odd(case, cycle)
        new = [number for number in cycle if not case.is_usual(pending_calls[number])]
        creates = case.waits.cycle_creates
        posted = isinstance(case.waits, PostingOrder)
        if new == [odd] and not creates and not posted:
            return  # it is in a call of its own, and not early in a common one
        here = pending_calls[odd if odd is not None else cycle[0]]
        others = [s for s in map(pending_calls.__getitem__, cycle) if s.comm.key != here.comm.key]
        # Rather one that the rank itself has to come to: in a long circle there are others.
        there = next((s for s in others if here.rank in s.comm.ranks), next(iter(others), here))
        waiting = ranks_text(number for number in cycle if number != here.rank)
        calls = (
            f"call {here.call.seq}, {call_text(here.call)}",
            f"call {there.call.seq}, {call_text(there.call)}",
        )
        if odd is None:
            summary = (
                f"{sentence(ranks_text(cycle))} wait for each other in a circle: some "
                f"{'posted to' if posted else 'entered'} {comm_text(here.comm)} first, some "
                f"{comm_text(there.comm)}; the records do not tell whose order is the odd one."
            )
        elif posted:
            summary = (
                f"{sentence(rank_text(case.run, odd))} posted {calls[0]} on "
                f"{comm_text(here.comm)} before {calls[1]} on {comm_text(there.comm)}, its peers "
                f"the other way round: on one stream neither ends, since each waits for the other."
            )
        else:
            summary = (
                f"{sentence(rank_text(case.run, odd))} entered {comm_text(here.comm)} before "
                f"{comm_text(there.comm)}, its peers the other way round: it stands in "
                f"{calls[0]}, and {waiting} in {calls[1]}, each waiting for the other."
            )
        if not posted and not _both_posted(case, cycle, here, there):
            finding = self._never_joined(case, cycle, odd, here, there)
            if odd is not None and new and not creates:
                finding = replace(finding, inferred=(_NEW_CALLS, *finding.inferred))
            yield finding
            return
        part = next((pending.comm for pending in (here, there) if pending.comm.part), None)
        yield Finding(
            kind=self.name,
            summary=summary,
            comm=there.comm,
            seq=there.call.seq,
            diverging_ranks=() if odd is None else (odd,),
            candidate_ranks=tuple(sorted(cycle)) if odd is None else (),
            odd=here.call,
            peers=there.call,
            confidence=(
                "ambiguous"
                if odd is None
                else "likely"
                if case.timeless or posted or part is not None or new
                else "certain"
            ),
            analyzer=self.name,
            evidence=(*against, *_sites(case, here, there))
            if posted
            else (*self._circle(cycle, pending_calls), *against),
            inferred=(
                *((_ON_ONE_STREAM, *self._circle(cycle, pending_calls)) if posted else ()),
                *((_NEW_ORDER,) if odd is not None and new and not creates else ()),
                *((same_part(part),) if odd is not None and part is not None else ()),
            ),
            extent=len(cycle),
        )

    def _never_joined(
        self,
        case: Case,
        cycle: tuple[int, ...],
        odd: int | None,
        here: PendingCall,
        there: PendingCall,
    ) -> Finding:
        """Describes ranks in calls that the others never posted: nobody's order is recorded.

        A rank that is in another call than its peers may have skipped theirs, or may mean to come
        to it later.
        """
        mine, theirs = (
            f"call {pending.call.seq} on {comm_text(pending.comm)}, {call_text(pending.call)}"
            for pending in (here, there)
        )
        waiting = waiting_in(case, there)
        who = ranks_text(waiting_in(case, here)) if odd is None else rank_text(case.run, odd)
        either = "it skipped that call, or would have come to it later"
        if odd is None:
            either = "one side skipped the other's call, or would have come to it later"
        part = next((pending.comm for pending in (here, there) if pending.comm.part), None)
        named = odd is not None
        # Whoever stands in another call does not come to the creation of a group, in any case.
        sure = there.call.op in CREATION_OPS and not case.timeless and part is None
        return Finding(
            kind="not_joined",
            summary=(
                f"{sentence(who)} never joined {theirs}, in which {ranks_text(waiting)} "
                f"{verb(waiting, 'wait')}, but {'pending_calls' if named else 'waits'} in {mine}: "
                f"{either}."
            ),
            comm=there.comm,
            seq=there.call.seq,
            diverging_ranks=() if odd is None else (odd,),
            candidate_ranks=tuple(sorted(cycle)) if odd is None else (),
            odd=here.call,
            peers=there.call,
            confidence="ambiguous" if not named else "certain" if sure else "likely",
            analyzer=self.name,
            evidence=tuple(self._circle(cycle, case.waits.pending_calls)),
            inferred=(same_part(part),) if named and part is not None else (),
            extent=len(cycle),
        )

    def _circle(
        self, cycle: tuple[int, ...], pending_calls: Mapping[int, PendingCall]
    ) -> Iterable[str]:
        for place, number in enumerate(cycle):
            pending = pending_calls[number]
            yield (
                f"rank {number} stands in #{pending.call.seq} on {comm_text(pending.comm)}, "
                f"{call_text(pending.call)}, and waits for rank {cycle[(place + 1) % len(cycle)]}"
            )

    def _odd(self, case: Case, cycle: tuple[int, ...]) -> tuple[int | None, tuple[str, ...]]:
        """Finds the one rank of the circle that took an order which few others took.

        In a circle of two nothing in the circle itself says who is odd. But every rank that
        plays the same part enters communicators of the same kinds, and its order counts.
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
        usual = max(orders.values(), key=len)
        odd = [number for number in cycle if number in rare]
        if len(odd) != 1:
            return None, ()
        return odd[0], (
            f"the order of the two calls is the same on {ranks_text(usual)}, and the opposite on "
            f"{ranks_text(rare)}",
        )

    def _order(
        self, case: Case, rank: Rank, first: PendingCall, second: PendingCall
    ) -> bool | None:
        """Whether a rank posted its counterpart of one call before that of the other."""
        places = [self._place(case, rank, pending) for pending in (first, second)]
        if -1 in places:
            return None
        before, after = places
        if before is None or after is None:
            # Posted one and not the other: that one comes first.
            return None if before is after else before is not None
        return before < after

    def _place(self, case: Case, rank: Rank, pending: PendingCall) -> int | None:
        """Where a rank posted its counterpart of a call; None not yet, -1 when it has none."""
        place: int | None = -1
        if pending.comm.creates_groups and rank.rank in pending.comm.ranks:
            place = None  # it belongs there, also before its first creation
        for key, log in rank.logs.items():
            if case.run.communicators[key].kind != pending.comm.kind:
                continue
            seq: int | None = pending.call.seq
            if key != pending.comm.key:
                standing = case.run.by_rank[pending.rank]
                own = standing.logs[pending.comm.key]
                seq = counterpart(standing, own, pending.call.seq, rank, log)
            if seq is None:
                continue  # it is at another place of the program, and tells nothing
            if log.first <= seq <= log.calls:
                return log.call(seq).position
            place = None
        return place


def _both_posted(case: Case, cycle: tuple[int, ...], here: PendingCall, there: PendingCall) -> bool:
    """Whether both orders of two calls are recorded: on each side somebody has posted both."""
    orders = set()
    for number in cycle:
        places = []
        for pending in (here, there):
            log = case.run.by_rank[number].logs.get(pending.comm.key)
            if log is not None and log.first <= pending.call.seq <= log.calls:
                places.append(log.call(pending.call.seq).position)
        if len(places) == 2:
            orders.add(places[0] < places[1])
    return len(orders) == 2


def _sites(case: Case, *pending_calls: PendingCall) -> Iterable[str]:
    """Says from where two ranks posted the same two calls, each in its own order."""
    for pending, other in zip(pending_calls, pending_calls[::-1], strict=True):
        log = case.run.by_rank[pending.rank].logs.get(other.comm.key)
        if log is None or not log.first <= other.call.seq <= log.calls:
            continue
        first, then = pending.call, log.call(other.call.seq)
        yield (
            f"rank {pending.rank} posted #{first.seq} on "
            f"{comm_text(pending.comm)}{site_text(first)}, "
            f"and after it #{then.seq} on {comm_text(other.comm)}{site_text(then)}"
        )
