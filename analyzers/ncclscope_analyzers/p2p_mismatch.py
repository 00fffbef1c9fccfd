"""A send and a receive that form a pair and do not match, or a missing half of a pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import unrecorded_kinds
from ncclscope.engine.sequences.step_order import LeftOrder, left_order
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.noted import doing, note_lines
from ncclscope.engine.waits.transfers import (
    Pair,
    StuckTransfer,
    behind_others,
    fits,
    has_tags,
    may_come,
    pairs,
    short_rank,
    stuck_transfers,
    unanswered,
    waiting_cycle,
)
from ncclscope.model import Blame, Call, Communicator, Fact, Finding, State
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import precedes
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import call_there, placed, plural, rank_text, site_text
from ncclscope.wording.not_joined import Was
from ncclscope.wording.p2p import Unpaired, half_missing, misdirected

_TURNS = 2
"""Times that two ranks have taken turns, after which each is expected to wait for its own."""
Cycle = Sequence[tuple[int, Call]]
"""Ranks that wait for the next one each, with the calls in which they wait."""


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
        for transfer in found:
            if transfer.is_led:
                yield self._missing(case, transfer, "consequence")
        behind = behind_others(case, found)
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
            ended = [rank.rank for rank in case.run.ranks if is_idle(rank)]
            left = left_order(case.run.ranks, ended) if found else None
            if left is not None:
                yield self._left(case, left, waiting_cycle(case, found))
                for transfer in found:
                    yield self._missing(case, transfer, "consequence")
                return
        cycle = waiting_cycle(case, found)
        in_cycle = {rank for rank, _ in cycle}
        waiting = {transfer.rank for transfer in found}
        for transfer in found:
            if frozenset((transfer.rank, transfer.peer)) in unfit:
                continue
            if transfer.rank in in_cycle:
                # One finding covers a whole cycle.
                if transfer.rank == min(in_cycle & waiting):
                    yield self._cycle(case, self._missing(case, transfer, "cause"), cycle)
            else:
                role = "consequence" if transfer.rank in behind else "cause"
                missing = self._missing(case, transfer, role)
                late = may_come(case, [transfer.peer])
                yield replace(missing, hangs=late or None)

    def _left(self, case: Case, left: LeftOrder, cycle: Cycle) -> Finding:
        """Describe a rank that alone left the order of calls which its steps had before."""
        comms, rank, who = case.run.communicators, left.rank, rank_text(case.run, left.rank)
        expected = call_there(comms[left.expected.comm], left.expected)
        code, now = Unpaired.ENDED_STEP, ""
        line = Unpaired.AFTER_STEP.of([rank], left.step, plural(left.number - 1, "call"))
        if left.posted is not None:
            code = Unpaired.SKIPPED if left.skipped else Unpaired.LEFT_ORDER
            now = call_there(comms[left.posted.comm], left.posted)
            line = Unpaired.IN_STEP.of(rank, left.number, left.step, now, site_text(left.posted))
        return Finding(
            kind="missing_call" if left.skipped else self.name,
            summary=code.of(
                who=who, expected=expected, posted=now, step=left.step, number=left.number
            ),
            comm=case.run.communicators[left.expected.comm],
            # Transfers and the calls of several communicators have no common number.
            seq=None,
            blame=Blame.on((left.rank,)),
            odd=left.posted,
            peers=left.expected,
            role="cause",
            evidence=(
                line,
                Unpaired.IN_STEPS_BEFORE.of(expected, site_text(left.expected)),
                *_cycle_lines(case, cycle),
            ),
            inferred=(Unpaired.OTHERS_KEPT.of(rank),),
            hangs=True if left.posted is None else None,
        )

    def _cycle(self, case: Case, finding: Finding, cycle: Cycle) -> Finding:
        """Describe ranks that wait for each other, none of them posting fewer transfers."""
        evidence = (*finding.evidence, *_cycle_lines(case, cycle))
        if len(cycle) < 3:
            return replace(finding, evidence=evidence)
        ranks = tuple(sorted(rank for rank, _ in cycle))
        mixed = any(call.op not in P2P_OPS for _, call in cycle)
        return replace(
            finding,
            summary=(Unpaired.MIXED_CYCLE if mixed else Unpaired.CYCLE).of(ranks, finding.summary),
            blame=Blame.among(ranks),
            evidence=evidence,
            inferred=(Doubt.WHICH_IS_WRONG.of(),),
        )

    def _short(
        self, case: Case, found: Sequence[StuckTransfer], diverging: int, reason: str
    ) -> Iterable[Finding]:
        """Describe a rank with fewer transfers than its neighbours, and the ranks behind them."""
        own = [transfer for transfer in found if transfer.peer == diverging]
        first, who = own[0], rank_text(case.run, diverging)
        halves = "; ".join(
            half_missing(Unpaired.HALF, one.call, rank=one.rank, number=one.number) for one in own
        )
        late, comm = may_come(case, [diverging]), first.pair.comm
        stuck = next((transfer for transfer in found if transfer.rank == diverging), None)
        joins = case.waits.ends.get(diverging, ()) if late else ()
        yield Finding(
            kind="not_joined" if late else self.name,
            summary=Unpaired.LATE_FOR_ALL.of(who=who, comm=comm, halves=halves, joins=joins)
            if joins
            else (Unpaired.LATE if late else Unpaired.UNLIKE).of(who, comm, halves),
            comm=first.pair.comm,
            # Transfers are not collectives, and are numbered separately.
            seq=None,
            blame=Blame.on((diverging,)),
            odd=None if stuck is None else stuck.call,
            peers=first.call,
            role="cause",
            evidence=(
                *map(_stuck_line, (*own, *((stuck,) if stuck else ()))),
                *(
                    _wait_line(case, rank, diverging, case.waits.pending_calls[rank].call)
                    for rank in joins
                ),
            ),
            inferred=((Unpaired.IS_LATE if late else Unpaired.DIVERGED).of(diverging, reason),),
            hangs=late or None,
        )
        for transfer in found:
            if diverging not in (transfer.rank, transfer.peer):
                yield self._missing(case, transfer, "consequence")

    def _missing(self, case: Case, transfer: StuckTransfer, role: str) -> Finding:
        pair, call, rank, peer = transfer.pair, transfer.call, transfer.rank, transfer.peer
        unseen, ends = _unseen_peers(case, peer), {"sender": pair.sender, "receiver": pair.receiver}
        last = case.run.by_rank[peer].last_call()
        evidence = [
            Unpaired.COUNTS.of(
                **ends,
                sends=plural(len(pair.sends), "send"),
                receives=plural(len(pair.receives), "receive"),
                paired=transfer.number - 1,
            ),
            Unpaired.PENDING.of(rank=rank, call=call, site=site_text(call)),
            transfer.proof,
        ]
        if last is not None:
            comm = case.run.communicators[last.comm]
            text = Unpaired.LAST.of(rank=peer, call=last, comm=comm, site=site_text(last))
            evidence.append(text)
        if unseen:
            evidence.append(Unpaired.UNSEEN.of(peer, unseen))
        evidence += note_lines(case, case.run.by_rank[peer])
        now = doing(case.run.by_rank[peer])
        missing = Finding(
            kind=self.name,
            summary=half_missing(
                Unpaired.MISSING,
                call,
                who=rank_text(case.run, rank),
                whom=rank_text(case.run, peer),
                comm=pair.comm,
                number=transfer.number,
                **ends,
            ),
            comm=pair.comm,
            seq=call.seq,
            blame=Blame.among(sorted({rank, peer, *unseen})),
            odd=call,
            role=role,
            evidence=tuple(evidence),
            inferred=((Doubt.WHICH_IS_WRONG if unseen else Unpaired.OPEN_PAIR).of(),),
        )
        return missing if now is None else missing.with_clause(Was.NOW.of(now.clause))

    def _misdirected(self, case: Case, found: Sequence[StuckTransfer], diverging: int) -> Finding:
        """Describe a rank whose single error explains all transfers that wait."""
        own = sorted(found, key=lambda transfer: transfer.rank != diverging)
        first = own[0]
        unread = [
            Unpaired.NOT_RECEIVED.of(
                pair.sender, plural(len(pair.sends), "time"), plural(len(pair.receives), "receive")
            )
            for pair in _unreceived(case, first)
        ]

        why = Unpaired.ONLY_SHARED.of()
        if unread:
            why = Unpaired.NEVER_RECEIVED.of(first.peer)
        elif first.rank == diverging and first.number == 1 and len(own) == 2:
            why = Unpaired.NEW.of(first.peer, own[-1].rank)
        elif first.rank == diverging and _is_out_of_turn(case, first):
            why = Unpaired.OUT_OF_TURN.of(first.rank, first.peer, own[-1].rank)
        return Finding(
            kind=self.name,
            summary=misdirected(
                case.run,
                diverging,
                first.pair.comm,
                [(one.rank, one.peer, one.call) for one in own],
            ),
            comm=first.pair.comm,
            # Transfers are not collectives, and are numbered separately.
            seq=None,
            blame=Blame.on((diverging,)),
            odd=first.call,
            peers=own[1].call if len(own) > 1 else None,
            role="cause",
            evidence=(*map(_stuck_line, own), *unread),
            inferred=(Unpaired.DIVERGED.of(diverging, why),),
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
        return Finding(
            kind=self.name,
            summary=Unpaired.UNFIT.of(
                sender=rank_text(case.run, pair[0]),
                receiver=rank_text(case.run, pair[1]),
                sent=sent,
                received=received,
                comm=comm,
                number=number,
            ),
            comm=comm,
            seq=sent.seq,
            blame=Blame.among(sorted(pair)),
            odd=sent,
            peers=received,
            role="cause",
            evidence=(
                Unpaired.MATCH.of(number - 1, pair[0], pair[1])
                if number > 1
                else Unpaired.FIRST.of(pair[0], pair[1]),
                f"rank {pair[0]}: {placed(sent)}",
                f"rank {pair[1]}: {placed(received)}",
            ),
            inferred=(
                *((Unpaired.BY_SIZE.of(),) if has_tags(comm) else ()),
                Unpaired.OPEN_PAIR.of(),
            ),
        )


def _cycle_lines(case: Case, cycle: Cycle) -> Iterable[str]:
    """Yield for each rank of a cycle what it waits in, and for whom."""
    following = (*cycle[1:], *cycle[:1])
    for (rank, call), (awaited, _) in zip(cycle, following, strict=True):
        yield _wait_line(case, rank, awaited, call)


def _stuck_line(one: StuckTransfer) -> str:
    return Unpaired.AFTER.of(
        rank=one.rank,
        call=one.call,
        site=site_text(one.call),
        before=plural(one.number - 1, "transfer"),
        proof=one.proof,
    )


def _wait_line(case: Case, rank: int, awaited: int, call: Call) -> str:
    comm = case.run.communicators[call.comm]
    return Fact.of_call(Unpaired.WAITS_FOR.of(rank, awaited, call, comm), [rank])


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
    first that it ever posted with that peer, or out of turn, and exactly what another rank waits
    for; no other rank has such a half.
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
        if (own.number == 1 or _is_out_of_turn(case, own))
        and other.number > 1
        and other.peer == own.rank
        and _is_for(own.call, other.call)
    ]
    return (turned[0][0].rank, turned[0]) if len({own.rank for own, _ in turned}) == 1 else None


def _is_out_of_turn(case: Case, transfer: StuckTransfer) -> bool:
    """Return whether a rank posted a half twice in a row, though both ranks always took turns.

    Its peer has kept to that, as one that asks and is answered.
    """
    key, ranks = transfer.pair.comm.key, transfer.pair.comm.ranks
    places = ranks.index(transfer.rank), ranks.index(transfer.peer)
    own, other = (
        _turns(case.run.by_rank[ranks[one]].p2p[key], transfer.call.op, peer)
        for one, peer in (places, places[::-1])
    )
    return len(own) > _TURNS and not own[-1] and all((*own[:-1], *other)) and len(other) >= _TURNS


def _turns(calls: Sequence[Call], op: str, peer: int) -> list[bool]:
    """Return whether a rank posted the other half between each two such halves with a peer.

    A receive from any source may be that half.
    """
    found: list[bool] = []
    has_turned: bool | None = None
    for call in calls:
        if call.op == op and call.peer == peer:
            if has_turned is not None:
                found.append(has_turned)
            has_turned = False
        elif call.op != op and call.peer in (peer, None) and has_turned is not None:
            has_turned = True
    return found


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
