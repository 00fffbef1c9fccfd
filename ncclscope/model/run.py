"""The ranks of a job, and what each of them recorded.

A :class:`Run` holds :class:`Rank` objects, a rank holds one :class:`~ncclscope.model.CallLog` for
each :class:`~ncclscope.model.Communicator` it is a member of, a log holds
:class:`~ncclscope.model.Call` objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ncclscope.model.call import Activity, Call, Communicator, Step
from ncclscope.model.log import CallLog, last_of, newest_of
from ncclscope.model.signature import P2P_OPS

if TYPE_CHECKING:
    from ncclscope.model.device import DeviceProgress
    from ncclscope.model.graphs import Graph
    from ncclscope.model.snapshot import Snapshot

__all__ = ["Rank", "Run"]


@dataclass(frozen=True)
class Rank:
    """One process of the job, and what it recorded.

    Attributes:
        rank: Global rank; -1 for a process that is none, such as an engine core.
        world_size: Size of the job as the process saw it; 0 when it did not know.
        host: Host name.
        pid: Process id on that host.
        gpu: Device index, where known.
        labels: Names the process gave itself: ``{"tp": "2", "dp": "1"}``.
        logs: Per communicator key.
        p2p: Point-to-point calls per communicator key, oldest first.
        records: Calls that are kept.
        lost: Calls that were recorded and have been overwritten.
        window: True where only the last so many calls were kept and their numbers are
            not known, so that counts mean nothing.
        started_ns: When the process began to record.
        last_seen_ns: Last sign of life, or None where the input cannot tell.
        exited: True when the process ended in order and said so.
        alive: Whether the process runs now; None where that cannot be known from here.
        steps: Steps of the engine, oldest first.
        activities: What it does besides its calls, by name.
        graphs: CUDA graphs that it captured, by number.
        device: How far its communicators are on its GPU, by key, where that was counted.
        orders: Digests of the order in which it took its communicators, by how many calls of each
            count, where its records are elsewhere; see ``waits.posting_order``.
        source: File it was read from.
        details: Whatever else the process wrote about itself.
    """

    rank: int
    world_size: int = 0
    host: str = ""
    pid: int = 0
    gpu: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, CallLog] = field(default_factory=dict)
    p2p: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    records: int = 0
    lost: int = 0
    window: bool = False
    started_ns: int | None = None
    last_seen_ns: int | None = None
    exited: bool = False
    alive: bool | None = None
    steps: Sequence[Step] = ()
    activities: Mapping[str, Activity] = field(default_factory=dict)
    graphs: Mapping[int, Graph] = field(default_factory=dict)
    device: Mapping[str, DeviceProgress] = field(default_factory=dict)
    orders: Mapping[int, str | None] = field(default_factory=dict)
    source: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def last_calls(self) -> dict[str, Call]:
        """The last kept collective on each communicator that has one."""
        return {
            key: log.call(log.calls) for key, log in self.logs.items() if log.calls >= log.first
        }

    def gave_up(self, call: Call) -> bool:
        """Whether the input proves that a call had its timeout and did not complete."""
        overdue = self.details.get("overdue", ())
        return (call.comm, call.op in P2P_OPS, call.seq) in overdue

    def last_step(self) -> Step | None:
        """The last step of the engine; None where none was recorded lately, or ever."""
        return last_of(self.steps)

    def last_steps(self, count: int) -> Sequence[Step]:
        """The last steps of the engine, oldest first; fewer where no more were recorded lately."""
        return newest_of(self.steps, count)

    def last_transfers(self) -> dict[str, Call]:
        """The last kept send or receive on each communicator that has one."""
        last = {key: last_of(calls) for key, calls in self.p2p.items()}
        return {key: call for key, call in last.items() if call is not None}

    def last_call(self, *, transfers: bool = False) -> Call | None:
        """The last kept collective of all; with ``transfers`` sends and receives count too."""
        calls = [*self.last_calls().values()]
        if transfers:
            calls += self.last_transfers().values()
        return max(calls, key=lambda call: call.position, default=None)


@dataclass(frozen=True)
class Run:
    """All that is known of one run of a job.

    Attributes:
        ranks: By global rank, in order.
        communicators: By key. Where members disagree on the label, the lowest rank's is taken.
        expected: Ranks the job should have: the largest world size that a process or a
            communicator speaks of.
        notes: What a reader should know about the input: torn files, older runs left out.
        sources: The paths as they were given.
        others: Processes without a rank, such as engine cores.
        capture: What was seen of the living processes, where somebody looked.
        dumped: Flight Recorder dumps that lie beside rings of the same ranks, as a run of their
            own: they hold what torch's C++ posts past the probes.
    """

    ranks: tuple[Rank, ...]
    communicators: Mapping[str, Communicator]
    expected: int
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    others: tuple[Rank, ...] = ()
    snapshot: Snapshot | None = None
    dumped: Run | None = None

    @cached_property
    def by_rank(self) -> dict[int, Rank]:
        """Ranks by their number."""
        return {rank.rank: rank for rank in self.ranks}

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that the job should have and that left nothing."""
        present = self.by_rank
        return tuple(number for number in range(self.expected) if number not in present)

    @property
    def window(self) -> bool:
        """Whether any rank's counts are those of a window."""
        return any(rank.window for rank in self.ranks)

    def members(self, key: str) -> Iterator[Rank]:
        """The ranks that recorded something about a communicator, in order."""
        return iter(self._members.get(key, ()))

    @cached_property
    def _members(self) -> dict[str, list[Rank]]:
        members: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            for key in rank.logs:
                members.setdefault(key, []).append(rank)
        return members
