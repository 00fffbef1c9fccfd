"""Which ends of processes account for the connections that others lost.

A process that ends closes its connections, and a peer that waits for it in a call fails. That peer
ends, too, so that a loss spreads from rank to rank. Who lost a connection has not diverged of that:
another one ended before, and each loss has a path to it, along calls in which the next rank waited.

Ends that are recorded account for as much as they can. The rest is put down to a rank whose end is
not recorded, if one alone accounts for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from ncclscope.engine.records import DEAD_SECONDS, Records, have_one_time
from ncclscope.engine.waits.waits import (
    PENDING,
    ended_by_peers,
    failed,
    lost_store,
    members_of,
    status_of,
)
from ncclscope.model import Call, Rank, State
from ncclscope.model.signature import CREATION_OPS, P2P_OPS
from ncclscope.model.threads import holds_up


@dataclass(frozen=True)
class Loss:
    """A call in which a rank may have lost its connection.

    Attributes:
        rank: Global rank.
        call: The call.
        sources: Other ranks in it that have ended, or may have, by then.
    """

    rank: int
    call: Call
    sources: frozenset[int]


class Losses:
    """The ranks that lost connections, and those that may have closed them.

    Args:
        records: The records.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._run = records.run

    @cached_property
    def all(self) -> tuple[Loss, ...]:
        """The calls in which ranks may have lost their connections, of each rank in order."""
        lost = [rank for rank in self._run.ranks if ended_by_peers(rank) and not lost_store(rank)]
        return tuple(
            Loss(rank.rank, call, frozenset(self._sources(rank, call)))
            for rank in lost
            for call in self._open_calls(rank)
        )

    @cached_property
    def closers(self) -> frozenset[int]:
        """Ranks without a recorded end, each of which alone accounts for what no other end does."""
        lost = {one.rank for one in self.all}
        ended = {rank.rank for rank in self._run.ranks if rank.exited} - lost
        rest = lost - self.reached(ended)
        sources = frozenset().union(*(one.sources for one in self.all))
        unknown = sources - ended - lost if rest else frozenset()
        found = frozenset(one for one in unknown if self.reached({one}) >= rest)
        # Each accounts for the end that its own record lacks, too. One without a record accounts
        # for no more, unless what it sent may have ended a rank that was in a call with it.
        recorded = {one: rank for one in found if (rank := self._run.by_rank.get(one))}
        known = frozenset(one for one, rank in recorded.items() if status_of(rank))
        calls = (call for rank in recorded.values() for call in self._open_calls(rank))
        with_them = {one for call in calls for one in self._run.communicators[call.comm].ranks}
        return known or found & {*recorded, *with_them} or found

    @cached_property
    def explained(self) -> frozenset[int]:
        """Ranks whose losses recorded failures account for."""
        return self.reached(self.origins - self.closers)

    @cached_property
    def origins(self) -> frozenset[int]:
        """Ranks whose end may be why others lost connections: recorded failures, or closers."""
        return self.closers | {rank.rank for rank in self._run.ranks if failed(rank)}

    @cached_property
    def following(self) -> tuple[Loss, ...]:
        """The losses that follow from these ends, with the ranks through which they may do so."""
        ranks = self.reached(self.origins)
        either = ranks | self.origins
        return tuple(
            Loss(one.rank, one.call, one.sources & either)
            for one in self.all
            if one.rank in ranks and one.sources & either
        )

    @property
    def unaccounted(self) -> bool:
        """Whether a rank lost a connection, and not known is by whose end."""
        known = {one.rank for one in self.following}
        return any(ended_by_peers(rank) and rank.rank not in known for rank in self._run.ranks)

    def reached(self, ended: Collection[int]) -> frozenset[int]:
        """Return the ranks whose losses the ends of some ranks account for."""
        known = {*ended}
        before = -1
        while len(known) > before:
            before = len(known)
            known.update(one.rank for one in self.all if not known.isdisjoint(one.sources))
        return frozenset(known & {one.rank for one in self.all})

    def _open_calls(self, rank: Rank) -> Iterator[Call]:
        """Yield the calls in which a rank ended: the first of each thread.

        Those of a batch of transfers are started together.
        """
        last = [
            call
            for calls in (*rank.p2p.values(), [*rank.last_calls().values()])
            for call in calls[-PENDING:]
            if call.state is not State.COMPLETED and not rank.went_on(call)
        ]
        for call in last:
            if not any(holds_up(one, call) for one in last):
                yield call

    def _sources(self, rank: Rank, call: Call) -> Iterator[int]:
        comm = self._run.communicators[call.comm]
        members = members_of(comm, call)
        if call.op in P2P_OPS and call.peer is not None:
            members = comm.ranks[call.peer : call.peer + 1]
        for number in members:
            other = self._run.by_rank.get(number)
            if number != rank.rank and (other is None or self._may_have_ended(other, rank)):
                yield number

    def _may_have_ended(self, other: Rank, rank: Rank) -> bool:
        """Return whether a process may have ended before another one lost a connection to it."""
        if other.exited:
            return True
        if other.rank not in self._gone:
            return False
        lived_on = ((other.last_seen_ns or 0) - (rank.last_seen_ns or 0)) / 1e9
        if other.host == rank.host and lived_on > 0:
            return False
        return not (lived_on >= DEAD_SECONDS and have_one_time(rank, other))

    @cached_property
    def _gone(self) -> frozenset[int]:
        """Ranks without a recorded end that may have ended by themselves."""
        return frozenset(
            rank.rank for rank in self._run.ranks if not rank.exited and self._may_be_gone(rank)
        )

    def _may_be_gone(self, rank: Rank) -> bool:
        if rank.alive or rank.details.get("beating") or rank.details.get("stopped"):
            return False
        # One that had waited itself for long was killed in a hang.
        quiet = self._records.quiet_seconds(rank)
        waited = quiet is not None and quiet >= self._records.stall_seconds
        return not any(
            waited or call.comm in self._with_living or self._waits_to_create(rank.rank, call)
            for call in self._open_calls(rank)
        )

    def _waits_to_create(self, number: int, call: Call) -> bool:
        """Return whether a rank creates a group, and a member has not come: it hung before."""
        if call.op not in CREATION_OPS:
            return False
        others = [one for one in self._run.communicators[call.comm].ranks if one != number]
        logs = (
            self._run.by_rank[one].logs.get(call.comm) for one in others if one in self._run.by_rank
        )
        return any(log is None or log.calls < call.seq for log in logs)

    @cached_property
    def _with_living(self) -> frozenset[str]:
        """Communicators with a living member, which is not in the calls that others lost.

        What that one sent instead may have ended them.
        """
        living = {rank.rank for rank in self._run.ranks if rank.alive}
        return frozenset(
            key
            for key, comm in self._run.communicators.items()
            if not living.isdisjoint(comm.ranks)
        )
