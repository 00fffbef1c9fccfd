"""Change what ranks posted into what their peers posted, and count which waiting ranks go on then.

Where ranks wait for each other, either may be wrong. If some of them did, up to here, what they had
done in each round before, and others left out a part of theirs, the latter are the cause, as long
as their repair releases all that waits.

A cause whose calls differ is repaired where they do: its ranks post what their peers did, and what
they posted besides is as recorded. Other causes suppose that their ranks behave as their peers
expect. Then the job is judged again, as if these were its records.

A rank that has not made a group cannot come to a call on it. If it went on to another call, what it
did not do is the creation, which its peers recorded before their first call on the group. A rank
that waits nowhere may not have come to the creation yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import WAITS, as_consequence
from ncclscope.engine.repairs.graph import WaitGraph
from ncclscope.engine.repairs.rounds import Departure, begun_round, departures, keeps_to_rounds
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.engine.waits.transfers import pairs
from ncclscope.engine.waits.waits import PendingCall, failed
from ncclscope.model import Blame, Call, Communicator, Finding, Rank, Run
from ncclscope.model.activities import RAISED
from ncclscope.model.log import CallLog, made_before
from ncclscope.model.memory import ListLog
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.names import plural, who_text
from ncclscope.wording.proofs import Repair
from ncclscope.wording.skips import Elsewhere, listed, there

BEFORE = 4
"""Calls before the first change that are kept."""
MOST = 512
"""Calls from the first change on up to which a history is repaired."""
MOST_RANKS = 8
"""Ranks of a job whose calls are played again: those around the change are read of each rank."""
COMMS = 64
"""Communicators by whose calls the place of a call in a rank's stream is found."""


@dataclass(frozen=True)
class Change:
    """Calls of a rank that are dropped, and calls that it posts as a peer did.

    Attributes:
        comm: Key of the communicator.
        seq: Number of the rank's first call in question; those after it move up or down.
        drop: Number of its calls that are dropped.
        add: Number of calls that it posts instead.
        like: The peer whose calls these are.
        start: Number of the first of them there.
    """

    comm: str
    seq: int
    drop: int
    add: int
    like: int
    start: int

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON has it."""
        return asdict(self)


def repaired(run: Run, changes: Mapping[int, Sequence[Change]]) -> Run | None:
    """Return a run in which ranks posted what their peers did.

    What they posted besides is as recorded, and gets the numbers that it has then.

    Args:
        run: The run.
        changes: The changes of each rank, those on a communicator in order.

    Returns:
        None where calls in question are overwritten, or too many, and for more than MOST_RANKS.
    """
    if changes and len(run.ranks) > MOST_RANKS:
        return None
    ranks = []
    for rank in run.ranks:
        logs, device = dict(rank.logs), dict(rank.device)
        own = changes.get(rank.rank, ())
        # Calls that were dropped do not count among those behind which others are added.
        for key in dict.fromkeys(
            one.comm for one in sorted(own, key=lambda one: one.add > one.drop)
        ):
            there = replace(rank, logs=logs)
            log = _changed(run, there, key, [one for one in own if one.comm == key])
            if log is None:
                return None
            logs[key] = log
            device.pop(key, None)
        ranks.append(replace(rank, logs=logs, device=device))
    return replace(run, ranks=tuple(ranks))


def _changed(run: Run, rank: Rank, key: str, changes: Sequence[Change]) -> CallLog | None:
    log = rank.logs[key]
    start = max(log.first, changes[0].seq - BEFORE)
    if start > changes[0].seq or log.calls - start > MOST:
        return None
    own, calls, place = log.span(start, log.calls + 1), list[Call](), start
    for one in changes:
        peer = run.by_rank[one.like].logs[key]
        if one.start < peer.first or one.add > MOST:
            return None
        calls += own[place - start : one.seq - start]
        around = [*calls[-1:], *own[one.seq - start :][:1]]
        dropped = own[one.seq - start :][: one.drop]
        for number, call in enumerate(peer.span(one.start, one.start + one.add)):
            if dropped:
                calls.append(_posted_instead(dropped[min(number, len(dropped) - 1)], call))
            else:
                at = _as_far_as(rank, run.by_rank[one.like], call.position)
                calls.append(_posted_between(around, call, at))
        place = one.seq + one.drop
    calls += own[place - start :]
    numbered = [replace(call, seq=number) for number, call in enumerate(calls, start)]
    return ListLog(log.communicator, numbered, made=start - 1)


def _as_far_as(rank: Rank, peer: Rank, position: int) -> int:
    """Return the position of a rank's last call that its peer posted before a position."""
    found = 0
    for key in islice((key for key in rank.logs if key in peer.logs), COMMS):
        log = rank.logs[key]
        made = min(made_before(peer.logs[key], position), log.calls)
        if made >= log.first:
            found = max(found, log.positions(made, made + 1)[0])
    return found


def _posted_between(around: Sequence[Call], call: Call, position: int) -> Call:
    """Return a peer's call as a rank posts it between two of its calls, near a position."""
    if not around:
        return replace(call, position=position, thread=0)
    low, high = around[0].position, around[-1].position
    within = min(max(position, low), max(low, high) if len(around) > 1 else max(low, position))
    return replace(_posted_instead(around[-1], call), position=within)


def _posted_instead(own: Call, call: Call) -> Call:
    """Return a peer's call as a rank posts it instead of its own call."""
    return replace(
        call,
        position=own.position,
        time_ns=own.time_ns,
        state=own.state,
        thread=own.thread,
        group=own.group,
    )


_WAITS = ("not_joined", "p2p_mismatch")
"""Kinds of findings on ranks for which others wait."""
_OPEN = ("not_joined", "order_cycle")
"""Kinds of findings on calls that a rank skipped, or has in another order."""
_OTHER = {"send": "recv", "recv": "send"}
_Half = tuple[int, str, str]
"""The other rank of a transfer, which half of it a call is, and the key of its communicator."""


def by_parts(
    graph: WaitGraph, findings: Sequence[Finding]
) -> Iterator[tuple[WaitGraph, Sequence[Finding]]]:
    """Yield the parts of a job that no wait joins, each with the findings on its ranks.

    All in one where a finding is on ranks of several parts, or on ranks of none.
    """
    about = [frozenset({*one.diverging_ranks, *one.candidate_ranks}) for one in findings]
    parts = [(part, part.awaited | part.waiting.keys()) for part in graph.parts]
    if any(sum(bool(ranks & own) for _, own in parts) != 1 for ranks in about):
        yield graph, findings
        return
    for part, own in parts:
        yield part, [one for one, ranks in zip(findings, about, strict=True) if ranks & own]


def decided_by_rounds(case: Case, graph: WaitGraph, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the ranks that depart from their rounds as causes.

    Args:
        case: The case.
        graph: Its wait graph.
        findings: The findings, whose causes may leave open which ranks diverged.

    Returns:
        The findings as they are, where each cause names its ranks, or where the repair of those
        ranks leaves others waiting.
    """
    causes = [one for one in findings if one.role == "cause"]
    sure = any(one.confidence == "certain" for one in causes)
    if not causes or sure or not graph.waiting or graph.unseen:
        return list(findings)
    found = _departures(case, graph, causes)
    kept = [one for one in causes if _is_kept(case, graph, one, found)]
    named = {rank for one in kept for rank in one.diverging_ranks}
    new = [one for rank, one in found.items() if rank not in named]
    if not named <= found.keys() or not new:
        return list(findings)
    if _held(case, graph, kept, found):
        return [_or_departed(one, found) if one in causes else one for one in findings]
    follows = [
        as_consequence(one)
        if one.role == "cause" and not any(one is other for other in kept)
        else one
        for one in findings
    ]
    dropped = [one for one in causes if not any(one is other for other in kept)] or causes
    alike: dict[object, list[Departure]] = {}
    for one in new:
        alike.setdefault(one.likeness, []).append(one)
    return [*(_finding(case, some, _like(some[0], dropped)) for some in alike.values()), *follows]


def were_answered(case: Case, numbers: Iterable[int]) -> frozenset[int]:
    """Return the ranks that wait within a round, an earlier call of which their peers answered.

    Then they are in the same round as these are, and have not gone round once more.
    """
    begun = {number: begun_round(case.run.by_rank[number]) for number in numbers}
    found = {
        number
        for number, calls in begun.items()
        for call in calls
        if call.op not in P2P_OPS
        for rank in case.run.members(call.comm)
        if rank.rank != number and rank.logs[call.comm].calls >= call.seq
    }
    if any(call.op in P2P_OPS for calls in begun.values() for call in calls):
        for pair in pairs(case):
            count = min(len(pair.sends), len(pair.receives))
            for number, halves in ((pair.sender, pair.sends), (pair.receiver, pair.receives)):
                if any(call in halves[:count] for call in begun.get(number, ())):
                    found.add(number)
    return frozenset(found)


def _or_departed(finding: Finding, found: Mapping[int, Departure]) -> Finding:
    """Return a finding on ranks that keep to their rounds, as open where others depart from theirs.

    Neither the repair of these nor that of those is known to be the only one.
    """
    if finding.kind not in _WAITS or not finding.diverging_ranks:
        return finding
    departed = sorted(found)
    undecided = finding.undecided(sorted({*finding.diverging_ranks, *departed}))
    return replace(
        undecided, inferred=(*undecided.inferred, Elsewhere.MAY_HAVE_DEPARTED.of(departed))
    )


def _departures(case: Case, graph: WaitGraph, causes: Sequence[Finding]) -> dict[int, Departure]:
    """Return the departures in a hang; none where most of its ranks depart from their rounds.

    A majority that departs together may have taken a branch that the others missed. In a large job
    the candidates of the causes are asked alone.
    """
    hanging = graph.waiting.keys() | graph.sinks
    asked = hanging
    if len(hanging) > MOST_RANKS:
        asked = hanging & {rank for one in causes for rank in one.candidate_ranks}
    if len(asked) > MOST_RANKS:
        return {}
    alive = [rank for rank in sorted(asked) if not failed(case.run.by_rank[rank])]
    found = {
        rank: one
        for rank, one in _unlike_peers(case, departures(case.run, alive)).items()
        if _is_noticed(case, graph, one)
    }
    return {} if 2 * len(found) > len(hanging) else found


def _unlike_peers(case: Case, found: Mapping[int, Departure]) -> dict[int, Departure]:
    """Return departures without the transfers that both of their ranks left out: they agree there.

    As where one rank asks another for nothing, and is sent nothing.
    """
    halves = {rank: Counter(_halves(case, one)) for rank, one in found.items()}
    unlike = {}
    for rank, one in found.items():
        agreed = Counter(
            {
                (other, op, key): min(count, halves[other][rank, _OTHER[op], key])
                for (other, op, key), count in halves[rank].items()
                if other in halves
            }
        )
        kept = []
        for call in one.left_out:
            half = _half(case, call)
            if half is None or not agreed[half]:
                kept.append(call)
            else:
                agreed[half] -= 1
        if kept or one.extra:
            unlike[rank] = replace(one, left_out=tuple(kept))
    return unlike


def _halves(case: Case, one: Departure) -> Iterator[_Half]:
    """Yield the transfers that a rank left out, and posted nothing instead of."""
    if not one.extra:
        yield from filter(None, (_half(case, call) for call in one.left_out))


def _half(case: Case, call: Call) -> _Half | None:
    """Return with whom a call is a transfer, which half of it, and where; None for others."""
    if call.op not in P2P_OPS or call.peer is None:
        return None
    return case.run.communicators[call.comm].ranks[call.peer], call.op, call.comm


def _is_noticed(case: Case, graph: WaitGraph, one: Departure) -> bool:
    """Return whether a peer has posted what a rank left out, or lacks what it posted once more.

    Of transfers, whether one waits for the rank, or the rank in one. Where the peers have fewer
    calls than a rank, it has come round since it left some out.
    """
    edited = one.left_out or one.extra
    own, noticed = case.run.by_rank[one.rank].logs, False
    for key in {call.comm for call in edited if call.op not in P2P_OPS}:
        theirs = [rank.logs[key].calls for rank in case.run.members(key) if rank.rank != one.rank]
        most = max(theirs, default=0)
        if one.left_out and theirs and most < own[key].calls:
            return False
        noticed |= most >= _next_on(case, one, key) if one.left_out else most < own[key].calls
    transfers = [wait for wait in graph.waits if wait.is_transfer]
    return noticed or (
        any(call.op in P2P_OPS for call in edited)
        and any(one.rank in (wait.rank, *wait.awaited) for wait in transfers)
    )


def _is_kept(
    case: Case, graph: WaitGraph, finding: Finding, found: Mapping[int, Departure]
) -> bool:
    """Return whether a cause names ranks whose calls differ, or which wait for nobody.

    That a rank never joined a call follows from where it departed from its rounds. So do calls left
    out on one communicator, if it left out others, too. A rank that keeps to its rounds, and waits,
    is no cause.
    """
    ranks = {*finding.diverging_ranks}
    if departed := [one for rank, one in found.items() if rank in ranks]:
        if finding.odd is None:
            return False  # it names no call of the rank, and a departure does
        if all(one.is_early for one in departed):
            return False
        more = all(len(one.left_out) > max(1, finding.extent) for one in departed)
        if finding.kind == "extra_call":
            # A call too many explains as much, unless an exception explains those left out.
            return not (more and all(_raised_before(case, one) for one in departed))
        return finding.kind != "not_joined" and not (finding.kind == "missing_call" and more)
    if finding.kind not in _WAITS:
        return bool(ranks)
    waiting = [case.run.by_rank[rank] for rank in ranks & graph.waiting.keys()]
    return bool(ranks) and not (len(waiting) == len(ranks) and all(map(keeps_to_rounds, waiting)))


def _raised_before(case: Case, one: Departure) -> bool:
    """Return whether a rank noted an exception within the round in which it left out calls."""
    activity = case.run.by_rank[one.rank].activities.get(RAISED)
    if activity is None or not one.left_out:
        return False
    return (one.left_out[0].time_ns or 0) < activity.since_ns <= (one.call.time_ns or 0)


def _like(one: Departure, causes: Sequence[Finding]) -> Finding:
    """Return the cause that has a rank among its candidates, or any."""
    own = [cause for cause in causes if one.rank in cause.candidate_ranks]
    return own[0] if own else causes[0]


def _held(
    case: Case, graph: WaitGraph, causes: Sequence[Finding], found: Mapping[int, Departure]
) -> frozenset[int]:
    """Return the ranks that wait although departures, and causes with ranks, are repaired."""
    named = {rank for one in causes for rank in one.diverging_ranks}
    changes = repair_of(case, [one for one in case.differences if named.issuperset(one.odd)])
    changes |= {rank: own for rank, one in found.items() if (own := repair_of_departure(case, one))}
    ranks = frozenset({*named, *found})
    played = play(case, graph, ranks, changes)
    if played is None:
        played = Played(frozenset(graph.waiting), graph, ranks, frozenset())
    return played.held()


def repair_of_departure(case: Case, one: Departure) -> tuple[Change, ...]:
    """Return how the calls of a rank become those of its rounds; transfers are as recorded."""
    changes = []
    for edited in (one.left_out, one.extra):
        for key in dict.fromkeys(call.comm for call in edited if call.op not in P2P_OPS):
            peers = [rank for rank in case.run.members(key) if rank.rank != one.rank]
            if not peers:
                continue
            like = max(peers, key=lambda rank: rank.logs[key].calls)
            count = sum(call.comm == key for call in edited)
            place = _next_on(case, one, key)
            if edited is one.extra:
                changes.append(Change(key, place, count, 0, like.rank, place))
            elif (more := min(count, like.logs[key].calls + 1 - place)) > 0:
                changes.append(Change(key, place, 0, more, like.rank, place))
    return tuple(changes)


def _next_on(case: Case, one: Departure, key: str) -> int:
    """Return the number of the next call on a communicator where a rank departs."""
    return made_before(case.run.by_rank[one.rank].logs[key], one.call.position) + 1


def _finding(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that depart from their rounds in the same way.

    Args:
        case: The case.
        departed: Where they do.
        instead_of: The finding that left open whether they diverged, or what they did.
    """
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    if one.is_replaced:
        return _replaced(case, departed, instead_of)
    if one.is_early:
        return _early(case, departed, instead_of)
    edited = one.left_out or one.extra
    kind, code, before = "extra_call", Elsewhere.ONCE_MORE, Elsewhere.ROUNDS_BEFORE_ONCE
    if one.left_out:
        kind = instead_of.kind if instead_of.kind in _OPEN else "missing_call"
        code = Elsewhere.LEFT_OUT_ONE if len(edited) == 1 else Elsewhere.LEFT_OUT
        before = Elsewhere.ROUNDS_BEFORE
    first, (comm, came) = edited[0], _comms(case, edited[0], one.call)
    others = {*instead_of.candidate_ranks, *instead_of.diverging_ranks} - {*ranks}
    keeping = [rank for rank in sorted(others) if keeps_to_rounds(case.run.by_rank[rank])]
    shown = _first_posted(case, one, ranks)
    return _of_departed(
        departed,
        instead_of,
        kind="p2p_mismatch" if first.op in P2P_OPS else kind,
        summary=code.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            count=plural(len(edited), "call"),
            begins="" if len(ranks) == 1 else f"rank {one.rank} ",
            first=there(comm, first),
            came=there(came, one.call),
        ),
        comm=comm if shown is None else case.run.communicators[shown.comm],
        seq=None if shown is None else shown.seq,
        peers=first if shown is None else shown,
        inferred=(
            before.of(one.rank, listed(case.run, edited)),
            *([Elsewhere.KEEP.of(keeping)] if keeping else []),
            *([Elsewhere.ONCE_MORE_AS_WELL.of(ranks)] if _may_repeat(case, one) else []),
        ),
        extent=len(edited),
        round=one.left_out,
    )


def _may_repeat(case: Case, one: Departure) -> bool:
    """Return whether a rank that left out several calls may have posted one too many instead.

    It waits in the first call after them, so that nothing shows which.
    """
    newest = case.run.by_rank[one.rank].last_call(transfers=True)
    return len(one.left_out) > 1 and newest == one.call


def _of_departed(departed: Sequence[Departure], instead_of: Finding, **what: Any) -> Finding:
    """Return a finding about ranks that depart from their rounds, with what is said of them."""
    return Finding(
        blame=Blame.on(one.rank for one in departed),
        odd=departed[0].call,
        odd_is="call",
        role="cause",
        analyzer="accounting",
        evidence=instead_of.evidence,
        hangs=instead_of.hangs,
        **what,
    )


def _replaced(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that posted a call elsewhere than in each round before."""
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    expected, posted = one.left_out[0], one.call
    is_transfer = posted.op in P2P_OPS
    before, now = _comms(case, expected, posted)
    return _of_departed(
        departed,
        instead_of,
        kind="p2p_mismatch" if is_transfer else "comm_swap",
        summary=Elsewhere.OTHER_TARGET.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            now=there(now, posted),
            usual=expected,
            before=before,
        ),
        comm=now,
        seq=None if is_transfer else posted.seq,
        peers=None if is_transfer else _first_posted(case, one, ranks),
        inferred=(Elsewhere.KEPT.of(one.rank),),
        extent=1,
    )


def _early(case: Case, departed: Sequence[Departure], instead_of: Finding) -> Finding:
    """Return a finding about ranks that posted a call before another one, and always after it."""
    one, ranks = departed[0], tuple(departed_one.rank for departed_one in departed)
    first, posted = one.left_out[0], one.call
    comm, here = _comms(case, first, posted)
    shown = _first_posted(case, one, ranks)
    return _of_departed(
        departed,
        instead_of,
        kind="order_cycle",
        summary=Elsewhere.EARLY.of(
            who=who_text(case.run, ranks),
            each="" if len(ranks) == 1 else "each ",
            now=there(here, posted),
            usual=first,
            there=comm,
        ),
        comm=comm,
        seq=None if shown is None else shown.seq,
        peers=first if shown is None else shown,
        inferred=(Elsewhere.EARLY_AS_WELL.of(),),
        extent=len(one.left_out),
    )


def _comms(case: Case, *calls: Call) -> list[Communicator]:
    return [case.run.communicators[call.comm] for call in calls]


def _first_posted(case: Case, one: Departure, ranks: Sequence[int]) -> Call | None:
    """Return the first call in question that a peer has posted, as the peer posted it.

    Where no peer has posted any, it is the first of the rank itself; None for a transfer.
    """
    edited = one.left_out or one.extra
    if edited[0].op in P2P_OPS:
        return None
    for key in dict.fromkeys(call.comm for call in edited if call.op not in P2P_OPS):
        seq = _next_on(case, one, key)
        for peer in case.run.members(key):
            log = peer.logs[key]
            if peer.rank not in ranks and log.first <= seq <= log.calls:
                return log.call(seq)
    return replace(edited[0], seq=_next_on(case, one, edited[0].comm))


@dataclass(frozen=True)
class Proof:
    """What the causes of a verdict account for.

    Attributes:
        ranks: Ranks that the causes name.
        changes: How their calls are repaired; a rank without any behaves as its peers expect.
        waiting: The waiting ranks.
        held: Those that wait with the repair, too.
        rival: The one other rank whose repair releases the most, and how many it releases; None
            without one.
        missing: Further ranks that never came: with theirs, the repair releases all that waits,
            and without one of them it does not.
        unexplained: Ranks that ended, or were stopped, by themselves, without the rival.
        comes: Changed ranks of which it is supposed that they come to what else their peers expect.
        against: What speaks against a rival that releases as much, besides the ends.
    """

    ranks: tuple[int, ...]
    changes: dict[int, tuple[Change, ...]]
    waiting: frozenset[int]
    held: frozenset[int]
    rival: tuple[int, int] | None
    unexplained: tuple[int, ...]
    missing: frozenset[int] = frozenset()
    comes: frozenset[int] = frozenset()
    against: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the repair accounts for all that waits."""
        return not self.held

    @property
    def lacks_few(self) -> bool:
        """Whether no more ranks never came than wait with the repair, too."""
        return 0 < len(self.missing) <= len(self.held)

    @property
    def is_alone(self) -> bool:
        """Whether something speaks against each other rank."""
        weaker = self.rival is None or self.rival[1] < len(self.waiting)
        return weaker or bool(self.unexplained or self.against)

    def to_dict(self, kind: str) -> dict[str, Any]:
        """Return the proof as JSON has it, for a cause of a kind."""
        of = len(self.waiting)
        against = []
        if self.rival is not None and self.rival[1] < of:
            against.append(Repair.RELEASES.of(self.rival[1], of))
        if self.rival is not None and self.unexplained:
            against.append(Repair.LEAVES_END.of(self.unexplained))
        against += self.against
        calls = [
            {"rank": rank, **one.to_dict()} for rank, some in self.changes.items() for one in some
        ]
        return {
            "repair": {
                "kind": kind,
                "ranks": list(self.ranks),
                "calls": calls,
                "comes": sorted(self.comes),
            },
            "releases": of - len(self.held),
            "of": of,
            "rival": None
            if self.rival is None
            else {"ranks": [self.rival[0]], "releases": self.rival[1]},
            "rival_against": against,
        }

    def __str__(self) -> str:
        of, rival, changed = len(self.waiting), self.rival, sorted(self.changes)
        expected = [rank for rank in self.ranks if rank not in self.changes]
        calls = sum(max(one.drop, one.add) for some in self.changes.values() for one in some)
        did = [Repair.AS_EXPECTED.of(expected)] if expected else []
        if changed:
            did.append(Repair.AS_PEERS.of(ranks=changed, calls=plural(calls, "call")))
        counts = Repair.SOME.of(of - len(self.held), of)
        if not self.held:
            counts = Repair.ALL.of(plural(of, "waiting rank"))
        nearest = "" if rival is None else Repair.NEAREST.of(rival[0], rival[1], of)
        return Repair.IF.of(did=str(Repair.AND).join(did), counts=counts, nearest=nearest)


def prove(case: Case, graph: WaitGraph, causes: Sequence[Finding]) -> Proof | None:
    """Return what the causes account for.

    Args:
        case: The case.
        graph: Its wait graph.
        causes: The causes.

    Returns:
        None where no rank is known to wait, and where a cause names no rank. Where the calls in
        question cannot be played again, their ranks are supposed to behave as their peers expect.
    """
    causes = [one for one in causes if not one.survived]
    ranks = frozenset(rank for one in causes for rank in one.diverging_ranks)
    if not graph.waiting or not ranks or not all(one.diverging_ranks for one in causes):
        return None
    changes = repair_of(case, [one for one in case.differences if ranks.issuperset(one.odd)])
    swapped = {rank for one in causes if one.kind == "comm_swap" for rank in one.diverging_ranks}
    swaps = [swap for swap in case.swaps if swap.rank in swapped]
    for swap in swaps:
        own = changes.get(swap.rank, ())
        there = [one for one in own if one.comm == swap.fewer.key]
        if all(one.comm != swap.comm.key for one in own):
            own = (*own, *_taken_back(case, swap))
        if not swap.exchanged and sum(one.add - one.drop for one in there) != swap.count:
            own = (*(one for one in own if one not in there), *_moved(case, swap))
        if own:
            changes[swap.rank] = own
    played = play(case, graph, ranks, changes)
    if played is None:
        changes = {}
        played = Played(frozenset(graph.waiting), graph, ranks, frozenset())
    still = played.held()
    rival = graph.nearest(ranks)
    left = graph.abnormal if rival is None else graph.abnormal - {rival[0]}
    return Proof(
        ranks=tuple(sorted(ranks)),
        changes=changes,
        waiting=frozenset(graph.waiting),
        held=still,
        rival=rival,
        unexplained=tuple(sorted(left)),
        missing=played.missing() & graph.sinks if still else frozenset(),
        comes=played.coming,
        against=()
        if rival is None or rival[1] < len(graph.waiting)
        else tuple(_against(case, ranks, rival[0], swaps)),
    )


def _against(case: Case, ranks: frozenset[int], rival: int, swaps: Iterable[Swap]) -> Iterator[str]:
    """Yield what the repair of a rival leaves unexplained of the ranks that the causes name."""
    for one in case.differences:
        others = sorted({*one.peers} - {rival})
        if one.odd and ranks.issuperset(one.odd) and others:
            yield Repair.LEAVES_UNLIKE.of(one=one, others=others)
    for swap in swaps:
        if swap.missed is not None or swap.count > 1:
            yield Repair.LEAVES_SWAP.of(swap)


@dataclass(frozen=True)
class Played:
    """A job whose repair was played.

    Attributes:
        waiting: The waiting ranks, as recorded.
        after: Who waits for whom with the repair.
        free: Ranks that go on.
        coming: Ranks that come to the calls of others, and wait in their own.
    """

    waiting: frozenset[int]
    after: WaitGraph
    free: frozenset[int]
    coming: frozenset[int]

    def held(self, *others: int) -> frozenset[int]:
        """Return the waiting ranks that wait with the repair, and that of other ranks, too."""
        repaired = self.free.union(others)
        goes_on = self.after.released(repaired, coming=self.coming)
        # Ranks that come to a further call which differs go on as far as there.
        further = {
            rank
            for one in self.after.unfit
            if not one.fits_without(repaired)
            for side in one.sides
            for rank in side
        }
        return self.waiting & (self.after.waiting.keys() - goes_on | further)

    def missing(self) -> frozenset[int]:
        """Return the ranks whose repair releases the rest, each of them needed; else none.

        None, too, where one of them waits for something that is not seen.
        """
        ends = self.after.sinks - self.free
        if ends & self.after.obscure:
            return frozenset()
        needed = all(self.held(*ends - {one}) for one in ends)
        return ends if ends and needed and not self.held(*ends) else frozenset()


def play(
    case: Case, graph: WaitGraph, ranks: frozenset[int], changes: Mapping[int, Sequence[Change]]
) -> Played | None:
    """Judge a job again as if its ranks had been repaired.

    Args:
        case: The case.
        graph: Its wait graph.
        ranks: The diverging ranks.
        changes: How their calls are repaired; one without any behaves as its peers expect.

    Returns:
        None where the calls in question cannot be played again.
    """
    after = graph
    if changes:
        run = repaired(case.run, changes)
        if run is None:
            return None
        after = wait_graph(
            Case(run, stall_seconds=case.stall_seconds, live_stall_seconds=case.live_stall_seconds)
        )
    waiting = frozenset(graph.waiting)
    # Who ended in the hang would have gone on; a thread that waited for nobody would not.
    went_on = (waiting - graph.partly_waiting | changes.keys()) - after.waiting.keys()
    free = went_on | (ranks - changes.keys())
    free |= graph.gone - graph.abnormal
    played = Played(waiting, after, free, frozenset())
    # Calls left out, or posted too many, on one communicator go with those on others.
    uneven = (rank for rank, some in changes.items() if sum(one.add - one.drop for one in some))
    supposed = replace(played, coming=frozenset(uneven))
    return supposed if supposed.held() < played.held() else played


def repair_of(case: Case, differences: Iterable[Difference]) -> dict[int, tuple[Change, ...]]:
    """Return how the calls of diverging ranks become those of their peers, by rank.

    Args:
        case: The case.
        differences: What is repaired: the first of each rank and communicator.
    """
    found: dict[int, dict[str, tuple[Change, ...]]] = {}
    for difference in differences:
        if difference.comm.creates_groups:
            continue  # each creation is new: what a rank creates afterwards is not known
        for rank in difference.odd:
            own = found.setdefault(rank, {})
            own.setdefault(difference.comm.key, tuple(_edited(case, difference)))
    return {
        rank: tuple(one for some in own.values() for one in some) for rank, own in found.items()
    }


def _edited(case: Case, difference: Difference) -> Iterator[Change]:
    logs = case.logs(difference.comm.key)
    like = max(difference.peers, key=lambda rank: logs[rank].calls)
    for edit in difference.edits:
        start = difference.seq + edit.peer_start
        yield Change(
            comm=difference.comm.key,
            seq=difference.seq + edit.start,
            drop=edit.inserted,
            add=max(0, min(edit.deleted, logs[like].calls + 1 - start)),
            like=like,
            start=start,
        )


def _taken_back(case: Case, swap: Swap) -> Iterator[Change]:
    """Yield the calls that a rank posted on the wrong communicator, ahead of its peers."""
    peers = [one for one in swap.peers if one in case.logs(swap.comm.key)]
    if peers:
        yield Change(swap.comm.key, swap.seq, swap.count, 0, peers[0], swap.seq)


def _moved(case: Case, swap: Swap) -> Iterator[Change]:
    """Yield the calls that a rank posted on another communicator instead."""
    key, logs = swap.fewer.key, case.logs(swap.fewer.key)
    place = logs[swap.rank].calls + 1 if swap.other is None else swap.other.seq
    peers = [one for one in logs if one != swap.rank]
    like = max(peers, key=lambda one: logs[one].calls, default=None)
    if like is not None and (calls := min(swap.count, logs[like].calls + 1 - place)) > 0:
        yield Change(comm=key, seq=place, drop=0, add=calls, like=like, start=place)


def with_unmade_groups(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, with a creation left out in place of a call that follows from it.

    Args:
        case: The case.
        findings: The findings.
    """
    return [_made_by_others(case, one) or one for one in findings]


def _made_by_others(case: Case, finding: Finding) -> Finding | None:
    """Return a finding on the group that its ranks have not made; None where they have."""
    ranks = finding.diverging_ranks
    is_wait = finding.kind in (*WAITS, "missing_call") and not finding.aligned
    if finding.role != "cause" or not is_wait or not ranks:
        return None
    if not {*ranks} <= case.waits.pending_calls.keys():
        return None
    for pending in case.waits.all_pending:
        if not {*ranks} <= {*pending.comm.ranks} or pending.rank in ranks:
            continue
        made = _creation(case, pending)
        if made is None or not all(_lacks(case, rank, pending, made) for rank in ranks):
            continue
        comm = case.run.communicators[made.comm]
        waiting = [one.rank for one in case.waits.all_pending if one.comm.key == pending.comm.key]
        return replace(
            finding,
            kind="missing_call",
            summary=Elsewhere.NOT_MADE.of(
                who=who_text(case.run, ranks),
                group=pending.comm,
                waiting=waiting,
                made=made,
                where=there(comm, made),
            ),
            comm=comm,
            seq=made.seq,
            peers=made,
            inferred=(*finding.inferred, Elsewhere.NOT_MADE_YET.of(ranks)),
            extent=1,
        )
    return None


def _creation(case: Case, pending: PendingCall) -> Call | None:
    """Return the creation by which a waiting rank made the communicator of its call."""
    before = [
        call
        for log in case.run.by_rank[pending.rank].logs.values()
        if log.communicator.creates_groups
        for call in log.span(log.first, log.calls + 1)
        if call.sizes
        and {*call.sizes} == {*pending.comm.ranks}
        and call.position < pending.call.position
    ]
    return max(before, key=lambda call: call.position, default=None)


def _lacks(case: Case, number: int, pending: PendingCall, made: Call) -> bool:
    """Return whether a rank posted neither the creation of a communicator nor a call on it."""
    rank = case.run.by_rank.get(number)
    if rank is None or rank.lost or pending.comm.key in rank.logs:
        return False
    log = rank.logs.get(made.comm)
    return log is None or log.calls < made.seq
