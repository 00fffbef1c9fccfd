"""Who waits for whom, with every kind of wait in it, and what a repair of some ranks releases.

Each thread of a rank waits in one call, for all members that have not come to it, or in a receive
from any source for any of its senders, at a file lock for those that hold it, at a store for any
that may set a key, or for work for those that its engine waits for. A repair supposes of some ranks
that they behave as their peers expect: they come to every call, and what they post fits. What is
released then is a least fixpoint: a thread goes on once all come for which it waits, or any, and a
thread that goes on comes to its peers' calls. One that waits for nobody, and whose rank is not
repaired, never comes: there a chain of waiting ends, even if another thread of its rank waits.

A set of ranks explains a hang if its repair releases every waiting rank. Ranks without which the
rest of the set explains as much are victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import combinations

from ncclscope.model import Call
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import is_any_thread


class Outside(Enum):
    """What a rank waits for that is no call."""

    LOCK = "lock"
    MEETING = "meeting"
    SOCKET = "socket"
    STORE = "store"
    WORK = "work"


@dataclass(frozen=True)
class Wait:
    """A thread of a rank that waits.

    Attributes:
        rank: Global rank.
        call: The call, a collective or a transfer; None at a lock or a store, or where the call is
            not recorded.
        awaited: Ranks that have not posted the call, or its other half, or are in an earlier one.
        threads: Which threads of these may come to it; any of a rank that is left out.
        is_any: Whether any of these ranks suffices, as for a receive from any source.
        lost: Whether the rank lost its connection to one of these. It would not have if that one
            had gone on; what the rank itself did otherwise would not have kept it.
        outside: What it waits for instead of a call: a file lock, which the awaited ranks hold, a
            key of a store, the other end of a connection, work, which its engine sends once the
            awaited ranks go on, or the meeting of all ranks in `init_process_group`.
    """

    rank: int
    call: Call | None
    awaited: frozenset[int]
    threads: Mapping[int, frozenset[int]] = field(default_factory=dict)
    is_any: bool = False
    lost: bool = False
    outside: Outside | None = None

    def is_held_up_by(self, other: Wait) -> bool:
        """Return whether the thread of an awaited rank that is to come is in another wait."""
        thread = 0 if other.call is None else other.call.thread
        return is_any_thread(thread, self.threads.get(other.rank, ()))

    @property
    def is_passed_on(self) -> bool:
        """Whether it is known for whom it waits outside of any call, and that they keep it."""
        return self.outside in (Outside.LOCK, Outside.SOCKET, Outside.WORK)

    @property
    def is_transfer(self) -> bool:
        """Whether it is a send or a receive that waits for its other half."""
        return self.call is not None and self.call.op in P2P_OPS


@dataclass(frozen=True)
class Unfit:
    """A call whose members posted different ones, so that it cannot complete.

    Attributes:
        comm: Key of the communicator.
        seq: Number of the call.
        sides: Its members by what they posted, two sides at least.
    """

    comm: str
    seq: int
    sides: tuple[tuple[int, ...], ...]

    def fits_without(self, repaired: Collection[int]) -> bool:
        """Return whether all other members posted the same."""
        return sum(any(rank not in repaired for rank in side) for side in self.sides) < 2


class WaitGraph:
    """Who waits for whom in a job in which nothing moves.

    Args:
        waits: The waiting threads.
        unfit: Calls whose members posted different ones.
        abnormal: Ranks whose end, or stop, is recorded and follows from no other rank's.
        unseen: Ranks without a record, which may have come to every call.
        obscure: Ranks that wait, and it is not known for whom.
        gone: Ranks that ended, or stopped, without a record of it: they wait for nobody, and never
            come.
    """

    def __init__(
        self,
        waits: Iterable[Wait],
        unfit: Iterable[Unfit] = (),
        abnormal: Iterable[int] = (),
        unseen: Iterable[int] = (),
        obscure: Iterable[int] = (),
        gone: Iterable[int] = (),
    ) -> None:
        self.waits = tuple(waits)
        self.waiting: dict[int, list[Wait]] = {}
        """The waits of each waiting rank."""
        for wait in self.waits:
            self.waiting.setdefault(wait.rank, []).append(wait)
        self.unfit = tuple(unfit)
        self.abnormal = frozenset(abnormal)
        self.unseen = frozenset(unseen)
        self.obscure = frozenset(obscure)
        self.gone = frozenset(gone)
        self._lost = frozenset(wait.rank for wait in self.waits if wait.lost)
        self._unfit_of: dict[str, list[Unfit]] = {}
        for one in self.unfit:
            self._unfit_of.setdefault(one.comm, []).append(one)

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks that others wait for."""
        return frozenset().union(*(wait.awaited for wait in self.waits))

    def awaited_by(self, rank: int) -> frozenset[int]:
        """Return the ranks for which a rank waits; empty for one that waits for nobody."""
        return frozenset().union(*(wait.awaited for wait in self.waiting.get(rank, ())))

    def reached(self, ranks: Iterable[int]) -> frozenset[int]:
        """Return some ranks, and all for which they wait, or for which those wait."""
        found, left = {*ranks}, [*ranks]
        while left:
            new = self.awaited_by(left.pop()) - found
            found |= new
            left += new
        return frozenset(found)

    def ends(self, ranks: Iterable[int]) -> frozenset[int]:
        """Return the ranks in which the chains end that begin at some ranks.

        They wait for nobody, or for each other alone.
        """
        cycle_of, led = _led_on({rank: self.awaited_by(rank) for rank in self.reached(ranks)})
        return frozenset(rank for rank, cycle in cycle_of.items() if cycle not in led)

    def calls_for(self, rank: int) -> list[tuple[int, Call]]:
        """Return who waits in which call for a rank, or for one that waits outside for it."""
        outside = {wait.rank for wait in self.waits if wait.outside and rank in wait.awaited}
        return [
            (wait.rank, wait.call)
            for wait in self.waits
            if wait.call is not None and wait.awaited & {rank, *outside}
        ]

    @property
    def sinks(self) -> frozenset[int]:
        """Recorded ranks that others wait for, in a thread that waits for nobody."""
        return (self.awaited - self.waiting.keys() - self.unseen) | self.partly_waiting

    @cached_property
    def partly_waiting(self) -> frozenset[int]:
        """Ranks that others wait for in a thread that waits for nobody, while another one waits."""
        return frozenset(
            rank
            for wait in self.waits
            for rank in wait.awaited & self.waiting.keys()
            if not self._holding_up(wait, rank)
        )

    def _holding_up(self, wait: Wait, rank: int) -> list[Wait]:
        """Return the waits that keep an awaited rank from coming to a call."""
        return [one for one in self.waiting.get(rank, ()) if wait.is_held_up_by(one)]

    def released(
        self, repaired: Collection[int], *, coming: Collection[int] = (), joins: bool = False
    ) -> frozenset[int]:
        """Return the waiting ranks that go on if some ranks behave as their peers expect.

        Args:
            repaired: Those ranks.
            coming: Ranks that come to the calls of others, and wait in their own.
            joins: Whether threads that wait for no other rank wait for the threads of their own.
        """
        blocked: dict[int, int] = {}
        followers: dict[int, list[Wait]] = {}
        going = []
        for wait in self.waits:
            if wait.rank in repaired and not wait.lost:
                going.append(wait)
                continue
            if not self._fits(wait.call, repaired):
                continue
            missing = [
                one
                for one in wait.awaited
                if (one not in repaired or (wait.lost and one in self._lost))
                and one not in coming
                and one not in self.unseen
            ]
            held_up_by = [
                self._holding_up(wait, one) or (self.waiting.get(one, []) if joins else [])
                for one in missing
            ]
            if not wait.is_any and not all(held_up_by):
                continue  # a thread that waits for nobody never comes
            blocked[id(wait)] = 1 if wait.is_any else sum(map(len, held_up_by))
            if not missing or (wait.is_any and len(missing) < len(wait.awaited)):
                going.append(wait)
                continue
            for one in (one for some in held_up_by for one in some):
                followers.setdefault(id(one), []).append(wait)
        free: Counter[int] = Counter()
        while going:
            wait = going.pop()
            free[wait.rank] += 1
            for follower in followers.get(id(wait), ()):
                blocked[id(follower)] -= 1
                if not blocked[id(follower)]:
                    going.append(follower)
        own = frozenset(self.waiting).intersection(repaired)
        return own | {rank for rank, count in free.items() if count == len(self.waiting[rank])}

    @cached_property
    def parts(self) -> list[WaitGraph]:
        """The graphs of ranks that no wait joins to the others, each with what concerns them."""
        joined = [frozenset({wait.rank}) | wait.awaited for wait in self.waits]
        joined += [frozenset().union(*one.sides) for one in self.unfit]
        members: list[frozenset[int]] = []
        for ranks in joined:
            apart = [one for one in members if one.isdisjoint(ranks)]
            members = [*apart, ranks.union(*(one for one in members if one not in apart))]
        return [
            WaitGraph(
                (wait for wait in self.waits if wait.rank in own),
                (one for one in self.unfit if own.issuperset(one.sides[0])),
                self.abnormal & own,
                self.unseen,
                self.obscure & own,
                self.gone & own,
            )
            for own in members
        ]

    def behind(self, ranks: Collection[int]) -> frozenset[int]:
        """Return those of some waiting ranks that wait for others at the end of their chain.

        Of ranks that wait for each other, the lowest of these is not behind the rest.
        """
        edges = {rank: self.awaited_by(rank) for rank in self.waiting}
        cycle_of, led = _led_on(edges)
        lowest: dict[int, int] = {}
        for rank in ranks:
            lowest[cycle_of[rank]] = min(rank, lowest.get(cycle_of[rank], rank))
        return frozenset(
            rank
            for rank in ranks
            if edges[rank] <= edges.keys()
            and (cycle_of[rank] in led or lowest[cycle_of[rank]] < rank)
        )

    def explains(self, repaired: Collection[int]) -> bool:
        """Return whether a repair of some ranks accounts for all that waits, and for all ends.

        Of a thread that waits for no rank, while another one of its rank does, it is not known
        whether it waits for that one.
        """
        accounted = self.abnormal.issubset(repaired)
        return accounted and any(
            len(self.released(repaired, joins=joins)) == len(self.waiting)
            for joins in (False, True)
        )

    def without_victims(self, ranks: Iterable[int]) -> frozenset[int]:
        """Return the ranks of a set without which the rest of it does not explain as much.

        Those that wait themselves, and ended because their peers did, are tried first. One that
        is awaited and waits for nobody is no victim, even if another one would have sufficed.
        """
        kept = set(ranks)
        most = self.released(kept)
        ends = self.awaited - self.waiting.keys()
        for rank in sorted(kept, key=lambda rank: (rank not in self.waiting, rank)):
            rest = kept - {rank}
            if rank in self.abnormal or rank in ends or not rest:
                continue
            if self.released(rest) >= most:
                kept = rest
        return frozenset(kept)

    @cached_property
    def cheapest(self) -> list[frozenset[int]]:
        """The smallest sets of ranks whose repair explains the hang; at most two ranks each.

        Empty where only ranks without a record may be missing: what they did, any other rank may
        have caused. Empty, too, where a chain of waiting ends at a rank that waits for others.
        """
        if self.sinks & self.obscure:
            return []
        if not self.abnormal and len(self.released((), joins=True)) == len(self.waiting):
            return []
        for size in (1, 2):
            found = [
                each
                for ranks in combinations(self._candidates(size), size)
                if self.explains(ranks)
                for each in self._with_alike(frozenset(ranks))
            ]
            if found:
                return found
        return []

    def nearest(self, ranks: Collection[int]) -> tuple[int, int] | None:
        """Return the one other rank whose repair releases the most, and how many it releases.

        Args:
            ranks: The ranks that it is to be no one of.
        """
        others = [rank for rank in self._candidates(1 + len(ranks)) if rank not in ranks]
        counts = [(len(self.released({rank})), rank) for rank in others]
        most, rank = max(counts, key=lambda one: (one[0], -one[1]), default=(0, -1))
        return None if rank < 0 else (rank, most)

    def _with_alike(self, ranks: frozenset[int]) -> Iterator[frozenset[int]]:
        """Yield a set of ranks, and one with another rank of the same class."""
        yield ranks
        for rank in ranks:
            if others := self._alike(rank) - ranks:
                yield ranks - {rank} | {min(others)}
                return

    def _alike(self, rank: int) -> frozenset[int]:
        """Return the ranks of a class: those with the same wait, awaited by the same ranks."""
        like = self._likeness(rank)
        return frozenset(one for one in self._ranks() if self._likeness(one) == like)

    def _candidates(self, size: int) -> Sequence[int]:
        """Return as many ranks of each class, those whose repair may do the most first."""
        classes: dict[object, list[int]] = {}
        for rank in sorted(self._ranks(), key=lambda rank: (rank in self.waiting, rank)):
            classes.setdefault(self._likeness(rank), []).append(rank)
        return [rank for alike in classes.values() for rank in alike[:size]]

    def _ranks(self) -> frozenset[int]:
        sides = [side for one in self.unfit for side in one.sides]
        return self.sinks | self.waiting.keys() | frozenset().union(*sides)

    def _likeness(self, rank: int) -> object:
        waits = self.waiting.get(rank)
        if waits is None:
            return rank
        by = frozenset(other.rank for other in self.waits if rank in other.awaited)
        sides = tuple(side for one in self.unfit for side in one.sides if rank in side)
        places = tuple(
            (wait.call and (wait.call.comm, wait.call.seq, wait.call.op), wait.awaited - {rank})
            for wait in waits
        )
        return places, by, sides, rank in self.abnormal

    def _fits(self, call: Call | None, repaired: Collection[int]) -> bool:
        # Transfers have numbers of their own.
        return (
            call is None
            or call.op in P2P_OPS
            or all(
                one.seq > call.seq or one.fits_without(repaired)
                for one in self._unfit_of.get(call.comm, ())
            )
        )


def _led_on(edges: Mapping[int, Collection[int]]) -> tuple[dict[int, int], set[int]]:
    """Return the cycle of each rank, see :func:`_cycles`, and the cycles that wait for others."""
    cycle_of = _cycles(edges)
    led = {
        cycle_of[rank]
        for rank, awaited in edges.items()
        if any(cycle_of.get(one, cycle_of[rank]) != cycle_of[rank] for one in awaited)
    }
    return cycle_of, led


def _cycles(edges: Mapping[int, Collection[int]]) -> dict[int, int]:
    """Return for each rank one that it waits for and that waits for it, the same for all of these.

    Source: Kosaraju's algorithm for strongly connected components, in linear time.
    """
    order, seen = list[int](), set[int]()
    back: dict[int, list[int]] = {rank: [] for rank in edges}
    for start in edges:
        path = [] if start in seen else [(start, iter(edges[start]))]
        seen.add(start)
        while path:
            rank, rest = path[-1]
            for one in rest:
                if one in edges:
                    back[one].append(rank)
                    if one not in seen:
                        seen.add(one)
                        path.append((one, iter(edges[one])))
                        break
            else:
                order.append(rank)
                path.pop()
    found: dict[int, int] = {}
    for start in reversed(order):
        ahead = [start]
        while ahead:
            rank = ahead.pop()
            if rank not in found:
                found[rank] = start
                ahead += back[rank]
    return found
