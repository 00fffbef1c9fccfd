"""A send and a receive that form a pair and do not match, or a missing half of a pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import unrecorded_kinds
from ncclscope.engine.sequences.step_order import LeftOrder, left_order
from ncclscope.engine.waits.open_transfers import may_come, unanswered
from ncclscope.engine.waits.stopped_ends import short_rank, stopped_end
from ncclscope.engine.waits.transfers import (
    Pair,
    StuckTransfer,
    fits,
    has_tags,
    pairs,
    stuck_transfers,
    waiting_cycle,
)
from ncclscope.model import Call, Communicator, Fact, Finding, State
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.threads import precedes
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
)

_DOES = {"send": "sends to", "recv": "waits to receive from"}
Cycle = Sequence[tuple[int, Call]]
"""Ranks that wait for the next one each, with the calls in which they wait."""

_LACKS = {"send": "receive", "recv": "send"}
_BY_SIZE = (
    "tags pair transfers here, and are not recorded; no send and receive of one size are left"
)


class P2pMismatch:
    """A send and the receive it is paired with differ, or one of the two is missing."""

    name = "p2p_mismatch"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield the first mismatched pair for each direction between two ranks.

        Then yield the transfers that hang because one side was never posted.
        """
        unfit = set()
        for pair in pairs(case):
            for number, (sent, received) in enumerate(
                zip(pair.sends, pair.receives, strict=False), 1
            ):
                ranks = pair.sender, pair.receiver
                if not fits(sent, received) and _is_final(case, pair, received):
                    unfit.add(frozenset(ranks))
                    yield self._finding(case, pair.comm, ranks, number, sent, received)
                    break
        found = stuck_transfers(case)
        stopped = stopped_end(case, found, self.name)
        if stopped is not None and not unfit:
            yield stopped
            for transfer in found:
                if transfer.peer not in stopped.diverging_ranks:
                    yield self._missing(case, transfer, "consequence")
            return
        for transfer in found:
            if transfer.is_led:
                yield self._missing(case, transfer, "consequence")
        found = [transfer for transfer in found if not transfer.is_led]
        yield from unanswered(case, self.name, led=bool(found or unfit))
        if not unfit:
            misread = [transfer for transfer in found if _unreceived(case, transfer)]
            if len(misread) == 1:
                yield self._misdirected(case, misread, misread[0].rank)
                for transfer in found:
                    if transfer is not misread[0]:
                        yield self._missing(case, transfer, "consequence")
                return
            singled = _singled_out(case, found)
            if singled is not None:
                diverging, own = singled
                yield self._misdirected(case, own, diverging)
                for transfer in found:
                    if transfer not in own:
                        yield self._missing(case, transfer, "consequence")
                return
            short = short_rank(case, found)
            if short is not None:
                yield from self._short(case, found, *short)
                return
            left = left_order(case.run.ranks) if found else None
            if left is not None:
                yield self._left(case, left, waiting_cycle(case, found))
                for transfer in found:
                    yield self._missing(case, transfer, "consequence")
                return
        cycle = waiting_cycle(case, found)
        in_cycle = {rank for rank, _ in cycle}
        waiting = {transfer.rank for transfer in found}
        for place, transfer in enumerate(found):
            if frozenset((transfer.rank, transfer.peer)) in unfit:
                continue
            if transfer.rank in in_cycle:
                # One finding covers a whole cycle.
                if transfer.rank == min(in_cycle & waiting):
                    yield self._cycle(case, self._missing(case, transfer, "cause"), cycle)
            else:
                led = transfer.peer in waiting and (place > 0 or bool(cycle))
                missing = self._missing(case, transfer, "consequence" if led else "cause")
                late = may_come(case, [transfer.peer])
                yield replace(missing, hangs=late or None)

    def _left(self, case: Case, left: LeftOrder, cycle: Cycle) -> Finding:
        """Describe a rank that alone left the order of calls which its steps had before."""
        expected, posted = (
            f"{call_text(call)} on {comm_text(case.run.communicators[call.comm])}"
            for call in (left.expected, left.posted)
        )
        who = sentence(rank_text(case.run, left.rank))
        place = f"call {left.number} of step {left.step}"
        return Finding(
            kind="missing_call" if left.skipped else self.name,
            summary=f"{who} skipped {expected}, in step {left.step}, and went on with {posted}."
            if left.skipped
            else f"{who} posted {posted} as {place}, where each step before had {expected}.",
            comm=case.run.communicators[left.expected.comm],
            # Transfers and the calls of several communicators have no common number.
            seq=None,
            diverging_ranks=(left.rank,),
            odd=left.posted,
            peers=left.expected,
            confidence="likely",
            role="cause",
            analyzer=self.name,
            evidence=(
                f"rank {left.rank}, {place}: {posted}{site_text(left.posted)}",
                f"in each of the 3 steps before: {expected}{site_text(left.expected)}",
                *_cycle_lines(case, cycle),
            ),
            inferred=(
                f"rank {left.rank} diverged: all other ranks posted their calls in the same order "
                "as in the 3 steps before",
            ),
        )

    def _cycle(self, case: Case, finding: Finding, cycle: Cycle) -> Finding:
        """Describe ranks that wait for each other, none of them posting fewer transfers."""
        evidence = (*finding.evidence, *_cycle_lines(case, cycle))
        if len(cycle) < 3:
            return replace(finding, evidence=evidence)
        ranks = tuple(sorted(rank for rank, _ in cycle))
        what = "sends and receives"
        if any(call.op not in _DOES for _, call in cycle):
            what = "collectives, sends and receives"
        return replace(
            finding,
            summary=(
                f"{sentence(ranks_text(ranks))} wait for each other in a cycle of {what}. "
                f"{finding.summary}"
            ),
            candidate_ranks=ranks,
            evidence=evidence,
            inferred=("the records do not show which of them is wrong",),
        )

    def _short(
        self, case: Case, found: Sequence[StuckTransfer], diverging: int, reason: str
    ) -> Iterable[Finding]:
        """Describe a rank with fewer transfers than its neighbours, and the ranks behind them."""
        own = [transfer for transfer in found if transfer.peer == diverging]
        first = own[0]
        halves = "; ".join(
            f"rank {transfer.rank} {_DOES[transfer.call.op]} it, transfer {transfer.number} of "
            f"that kind between them, and it has posted no {_LACKS[transfer.call.op]} for it"
            for transfer in own
        )
        who = rank_text(case.run, diverging)
        late = may_come(case, [diverging])
        stuck = next((transfer for transfer in found if transfer.rank == diverging), None)
        joins = case.waits.ends.get(diverging, ()) if late else ()
        yield Finding(
            kind="not_joined" if late else self.name,
            summary=(
                f"{sentence(who)} is in no {'call' if joins else 'transfer'}, and its "
                f"{'peers' if joins else 'neighbours'} wait for it on "
                f"{comm_text(first.pair.comm)}: {halves}{_in_collectives(joins)}."
                if late
                else f"The transfers of {who} do not match its neighbours' on "
                f"{comm_text(first.pair.comm)}: {halves}."
            ),
            comm=first.pair.comm,
            # Transfers are not collectives, and are numbered separately.
            seq=None,
            diverging_ranks=(diverging,),
            odd=None if stuck is None else stuck.call,
            peers=first.call,
            confidence="likely",
            role="cause",
            analyzer=self.name,
            evidence=(
                *(
                    f"rank {transfer.rank}: {call_text(transfer.call)}, {transfer.call.state.word}"
                    f"{site_text(transfer.call)}; {plural(transfer.number - 1, 'transfer')} before "
                    f"it between the two; {transfer.proof}"
                    for transfer in (*own, *((stuck,) if stuck else ()))
                ),
                *(
                    _wait_line(case, rank, diverging, case.waits.pending_calls[rank].call)
                    for rank in joins
                ),
            ),
            inferred=(f"rank {diverging} {'is late' if late else 'diverged'}: {reason}",),
            hangs=late or None,
        )
        for transfer in found:
            if diverging not in (transfer.rank, transfer.peer):
                yield self._missing(case, transfer, "consequence")

    def _missing(self, case: Case, transfer: StuckTransfer, role: str) -> Finding:
        pair, call, rank, peer = transfer.pair, transfer.call, transfer.rank, transfer.peer
        unseen = _unseen_peers(case, peer)
        fitting = transfer.number - 1
        lacking = _LACKS[call.op]
        last = case.run.by_rank[peer].last_call()
        evidence = [
            f"{plural(len(pair.sends), 'send')} from rank {pair.sender} to rank {pair.receiver}, "
            f"{plural(len(pair.receives), 'receive')} there; {fitting} of them form pairs",
            f"rank {rank}: {call_text(call)}, {call.state.word}{site_text(call)}",
            transfer.proof,
        ]
        if last is not None:
            comm = case.run.communicators[last.comm]
            evidence.append(
                f"the last collective of rank {peer} is #{last.seq} on {comm_text(comm)}, "
                f"{call_text(last)}, {last.state.word}{site_text(last)}"
            )
        if unseen:
            evidence.append(
                f"rank {peer} waits in a transfer with {ranks_text(unseen)}, of which records are "
                f"missing or damaged"
            )
        return Finding(
            kind=self.name,
            summary=(
                f"{sentence(rank_text(case.run, rank))} posted {call_text(call)} on "
                f"{comm_text(pair.comm)}, transfer {transfer.number} from rank {pair.sender} to "
                f"rank {pair.receiver}, and {rank_text(case.run, peer)} has posted no {lacking} "
                f"for it."
            ),
            comm=pair.comm,
            seq=call.seq,
            candidate_ranks=tuple(sorted({rank, peer, *unseen})),
            odd=call,
            confidence="ambiguous",
            role=role,
            analyzer=self.name,
            evidence=tuple(evidence),
            inferred=(
                "the records do not show which of them is wrong"
                if unseen
                else "the records do not show which of the two is wrong",
            ),
        )

    def _misdirected(self, case: Case, found: Sequence[StuckTransfer], diverging: int) -> Finding:
        """Describe a rank whose single error explains all transfers that wait."""
        own = sorted(found, key=lambda transfer: transfer.rank != diverging)
        first = own[0]
        unread = [
            f"rank {pair.sender} has sent it {plural(len(pair.sends), 'time')}, and it has posted "
            f"{plural(len(pair.receives), 'receive')} from there"
            for pair in _unreceived(case, first)
        ]

        def name(transfer: StuckTransfer, rank: int) -> str:
            """Return the whole name of the diverging rank where it is first named."""
            is_first = transfer is first and rank == diverging
            return rank_text(case.run, rank) if is_first else f"rank {rank}"

        text = "; ".join(
            f"{name(one, one.rank)} {_DOES[one.call.op]} {name(one, one.peer)}, which has posted "
            f"no {_LACKS[one.call.op]} for it"
            for one in own
        )
        return Finding(
            kind=self.name,
            summary=f"{sentence(text)} (on {comm_text(first.pair.comm)}).",
            comm=first.pair.comm,
            # Transfers are not collectives, and are numbered separately.
            seq=None,
            diverging_ranks=(diverging,),
            odd=first.call,
            peers=own[1].call if len(own) > 1 else None,
            confidence="likely",
            role="cause",
            analyzer=self.name,
            evidence=(
                *(
                    f"rank {transfer.rank}: {call_text(transfer.call)}, {transfer.call.state.word}"
                    f"{site_text(transfer.call)}; {plural(transfer.number - 1, 'transfer')} before "
                    f"it between the two; {transfer.proof}"
                    for transfer in own
                ),
                *unread,
            ),
            inferred=(
                f"rank {diverging} diverged: "
                + (
                    f"it has never received from rank {first.peer}, and lacks a receive elsewhere"
                    if unread
                    else f"it never had such a transfer with rank {first.peer} before, and rank "
                    f"{own[-1].rank} waits for just this one"
                    if first.rank == diverging and first.number == 1 and len(own) == 2
                    else "it is the only rank that all transfers without a match share"
                ),
            ),
        )

    def _finding(
        self,
        case: Case,
        comm: Communicator,
        pair: tuple[int, int],
        number: int,
        sent: Call,
        received: Call,
    ) -> Finding:
        sender, receiver = pair
        return Finding(
            kind=self.name,
            summary=(
                f"{sentence(rank_text(case.run, sender))} posted {call_text(sent)} on "
                f"{comm_text(comm)}, and {rank_text(case.run, receiver)} {call_text(received)}: "
                f"transfer {number} between them does not match."
            ),
            comm=comm,
            seq=sent.seq,
            candidate_ranks=tuple(sorted(pair)),
            odd=sent,
            peers=received,
            confidence="ambiguous",
            role="cause",
            analyzer=self.name,
            evidence=(
                f"transfers 1 to {number - 1} from rank {sender} to rank {receiver} match"
                if number > 1
                else f"it is the first transfer from rank {sender} to rank {receiver}",
                f"rank {sender}: {call_text(sent)}{site_text(sent)}",
                f"rank {receiver}: {call_text(received)}{site_text(received)}",
            ),
            inferred=(
                *((_BY_SIZE,) if has_tags(comm) else ()),
                "the records do not show which of the two is wrong",
            ),
        )


def _cycle_lines(case: Case, cycle: Cycle) -> Iterable[str]:
    """Yield for each rank of a cycle what it waits in, and for whom."""
    following = (*cycle[1:], *cycle[:1])
    for (rank, call), (awaited, _) in zip(cycle, following, strict=True):
        yield _wait_line(case, rank, awaited, call)


def _in_collectives(ranks: Sequence[int]) -> str:
    return f"; {ranks_text(ranks)} {verb(ranks, 'wait')} for it in a collective" if ranks else ""


def _wait_line(case: Case, rank: int, awaited: int, call: Call) -> str:
    comm = comm_text(case.run.communicators[call.comm])
    return Fact.of_call(
        f"rank {rank} waits for rank {awaited}, in {call_text(call)} on {comm}", [rank]
    )


def _is_final(case: Case, pair: Pair, received: Call) -> bool:
    """Return whether a receive and a send that do not fit are a pair, and not just under way."""
    if not has_tags(pair.comm) or received.state is State.COMPLETED or case.timeless:
        return True
    ends = pair.sender, pair.receiver
    ended = any(case.how_it_ended(case.run.by_rank[rank]) is not None for rank in ends)
    return ended or case.longest_common_quiet(ends) is not None


def _singled_out(
    case: Case, found: Sequence[StuckTransfer]
) -> tuple[int, Sequence[StuckTransfer]] | None:
    """Return the one rank that accounts for the transfers without a match, and its own ones.

    All of them share it, and each peer has gone on without posting its half: a rank that waits for
    a third one has just as many unmatched transfers, and has not caused them. Or its half is the
    first that it ever posted with that peer, and exactly what another rank waits for; no other
    rank has such a half.
    """
    if len(found) < 2 or len({transfer.pair.comm.key for transfer in found}) > 1:
        return None
    common = set.intersection(*({transfer.rank, transfer.peer} for transfer in found))
    if len(common) == 1 and all(_went_on(case, transfer) for transfer in found):
        return common.pop(), found
    turned = [
        (own, other)
        for own in found
        for other in found
        if own.number == 1
        and other.number > 1
        and other.peer == own.rank
        and _is_for(own.call, other.call)
    ]
    return (turned[0][0].rank, turned[0]) if len(turned) == 1 else None


def _is_for(own: Call, other: Call) -> bool:
    """Return whether a half is what another rank waits for, but for its peer."""
    sent, received = sorted((own, other), key=lambda call: call.op != "send")
    return (sent.op, received.op) == ("send", "recv") and fits(sent, received)


def _unreceived(case: Case, transfer: StuckTransfer) -> list[Pair]:
    """Return the pairs whose sends a rank did not receive while it awaits another rank's first.

    A backend may complete a send that no rank receives.
    """
    if transfer.number > 1 or transfer.call.op != "recv":
        return []
    return [
        pair
        for pair in pairs(case)
        if pair.receiver == transfer.rank
        and pair.comm.key == transfer.pair.comm.key
        and len(pair.sends) > len(pair.receives) > 0
    ]


def _went_on(case: Case, transfer: StuckTransfer) -> bool:
    """Return whether the peer has posted a collective that this rank posted after its half."""
    other = case.run.by_rank[transfer.peer]
    for key, log in case.run.by_rank[transfer.rank].logs.items():
        kept = log.span(log.first, log.calls + 1)
        after = next((c.seq for c in kept if precedes(transfer.call, c)), None)
        if after is not None and key in other.logs and other.logs[key].calls >= after:
            return True
    return False


def _unseen_peers(case: Case, rank: int) -> list[int]:
    """Return with whom a rank waits in transfers, where their records are missing or damaged."""
    run = case.run
    unseen = {*run.missing, *(one.rank for one in run.ranks if DAMAGED in unrecorded_kinds(one))}
    open_calls = [
        (run.communicators[key].ranks, call.peer)
        for key, calls in run.by_rank[rank].p2p.items()
        for call in calls
        if call.state is not State.COMPLETED and call.peer is not None
    ]
    return sorted({ranks[peer] for ranks, peer in open_calls if peer < len(ranks)} & unseen)
