"""Count which waiting ranks go on where the causes of a verdict are repaired.

A cause whose calls differ is repaired where they do: its ranks post what their peers did, and what
they posted besides is as recorded. Other causes suppose that their ranks behave as their peers
expect. Then the job is judged again, as if these were its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclscope.engine.case import Case
from ncclscope.engine.repairs.graph import WaitGraph
from ncclscope.engine.repairs.repair import Change, repaired
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.model import Finding
from ncclscope.wording.names import plural
from ncclscope.wording.proofs import Repair


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
