"""The ranks of a job and their records.

A :class:`Run` holds :class:`Rank` objects, a rank holds one :class:`~ncclscope.model.CallLog` for
each :class:`~ncclscope.model.Communicator` it is a member of, a log holds
:class:`~ncclscope.model.Call` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ncclscope.model.call import Activity, Call, Communicator, Step
from ncclscope.model.log import CallLog, last_of, newest_of
from ncclscope.model.signature import P2P_OPS
from ncclscope.model.threads import precedes

if TYPE_CHECKING:
    import pandas as pd

    from ncclscope.model.device import DeviceProgress
    from ncclscope.model.graphs import Graph
    from ncclscope.model.snapshot import KernelEvent, QueueState, Snapshot
    from ncclscope.model.transfer import Transfer


@dataclass(frozen=True)
class Rank:
    """One process of the job, and its records.

    Attributes:
        rank: Global rank; -1 for a process without a rank, such as an engine core.
        world_size: Size of the job as the process saw it; 0 when unknown.
        host: Host name.
        pid: Process id on that host.
        gpu: Device index, where known.
        labels: Labels of the process: ``{"tp": "2", "dp": "1"}``.
        logs: Collectives per communicator key.
        p2p: Point-to-point calls per communicator key, oldest first.
        records: Number of kept calls.
        lost: Number of recorded calls that have been overwritten.
        window: True where only a fixed number of newest calls was kept and call numbers are
            unknown, so that counts prove nothing.
        started_ns: When the process began to record, nanoseconds since 1970.
        last_seen_ns: Last heartbeat, nanoseconds since 1970; None where the input has none.
        exited: True when the process exited normally and recorded that.
        alive: Whether the process runs now; None where that is unknown on this host.
        steps: Engine steps, oldest first.
        activities: Activities besides its calls, by name.
        graphs: Captured CUDA graphs, by number.
        device: Progress of its communicators on its GPU, by key, where that was counted.
        carried: Number of collectives that NCCL reported to its profiler plugin, by key; empty
            where that was not loaded.
        places: Own rank in communicators of NCCL's, by key, as NCCL reported it.
        before: Number of collectives before recording began, by key and operation, on communicators
            where it began late and NCCL reported them.
        transfers: Ends of transfers between engines, in the order of their last change.
        orders: Digests of the order in which it used its communicators, by the number of newest
            calls that count, where its records are on another node; see ``waits.posting_order``.
        source: File it was read from.
        details: Further metadata of the process.
        again: Reads the records of a living process again; None where they do not change.
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
    carried: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    transfers: Sequence[Transfer] = ()
    orders: Mapping[int, str | None] = field(default_factory=dict)
    source: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    again: Callable[[], Rank] | None = field(default=None, compare=False, repr=False)

    def kept_calls(self) -> list[Call]:
        """Return all kept calls in the order of posting, sends and receives included."""
        calls = [call for log in self.logs.values() for call in log.span(log.first, log.calls + 1)]
        calls += [call for sent in self.p2p.values() for call in sent]
        return sorted(calls, key=lambda call: call.position)

    def last_calls(self) -> dict[str, Call]:
        """Return the last kept collective on each communicator that has one."""
        return {
            key: log.call(log.calls) for key, log in self.logs.items() if log.calls >= log.first
        }

    @property
    def ended_well(self) -> bool:
        """Whether the process exited in order, without an exception."""
        return self.exited and not self.details.get("ended_with")

    def went_on(self, call: Call) -> bool:
        """Return whether the thread that posted a call has posted a later collective."""
        return any(precedes(call, last) for last in self.last_calls().values())

    def gave_up(self, call: Call) -> bool:
        """Return whether the input proves that a call timed out without completing."""
        overdue = self.details.get("overdue", ())
        return (call.comm, call.op in P2P_OPS, call.seq) in overdue

    def last_step(self) -> Step | None:
        """Return the last engine step; None where none is recorded or kept."""
        return last_of(self.steps)

    def last_steps(self, count: int) -> Sequence[Step]:
        """Return the last ``count`` engine steps, oldest first; fewer where fewer are recent."""
        return newest_of(self.steps, count)

    def last_transfers(self) -> dict[str, Call]:
        """Return the last kept send or receive on each communicator that has one."""
        last = {key: last_of(calls) for key, calls in self.p2p.items()}
        return {key: call for key, call in last.items() if call is not None}

    def last_call(self, *, transfers: bool = False) -> Call | None:
        """Return the last kept collective; with ``transfers`` sends and receives count, too."""
        calls = [*self.last_calls().values()]
        if transfers:
            calls += self.last_transfers().values()
        return max(calls, key=lambda call: call.position, default=None)


@dataclass(frozen=True)
class Run:
    """All data of one run of a job.

    Attributes:
        ranks: The ranks, ordered by global rank.
        communicators: By key. Where members disagree on the label, the lowest rank's is taken.
        expected: Number of ranks in the job: the largest world size of a process or communicator.
        notes: Remarks on the input, such as torn files or omitted older runs.
        sources: The paths as they were given.
        others: Processes without a rank, such as engine cores.
        snapshot: The snapshot of the live processes; None without one.
        kernel: What the kernel of a rank's host logged about memory and GPUs, oldest first.
        queues: Message queues of vLLM whose processes live on this host.
        locks: For each rank that waits for file locks: the ranks that hold them, -1 for any other
            process.
        dumped: Flight Recorder dumps beside rings of the same ranks, as a separate run: they hold
            the calls that torch's C++ posts past the probes.
        unreadable: Missing ranks whose records are damaged or cannot be read.
        linked: Runs of other jobs that exchange transfers with this one, that its ranks started, or
            that recorded in the same directory at the same time.
        started_by: Of a job that a rank of another one started: that rank.
        beside: Whether it only recorded in the directory of the run that it is linked to.
        untraced: Processes of the job that run or ran without a record and said so, each with the
            reason as ``details["untraced"]``. Those with a rank are among the missing ranks.
    """

    ranks: tuple[Rank, ...]
    communicators: Mapping[str, Communicator]
    expected: int
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    others: tuple[Rank, ...] = ()
    snapshot: Snapshot | None = None
    kernel: tuple[KernelEvent, ...] = ()
    queues: tuple[QueueState, ...] = ()
    locks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    dumped: Run | None = None
    unreadable: tuple[int, ...] = ()
    linked: tuple[Run, ...] = ()
    started_by: int | None = None
    beside: bool = False
    untraced: tuple[Rank, ...] = ()

    @cached_property
    def by_rank(self) -> dict[int, Rank]:
        """Ranks by their global rank."""
        return {rank.rank: rank for rank in self.ranks}

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Expected ranks that left no record."""
        present = self.by_rank
        return tuple(number for number in range(self.expected) if number not in present)

    @cached_property
    def unrecorded(self) -> frozenset[int]:
        """Missing ranks that are known to have come: untraced, or with unreadable records."""
        return frozenset({*self.unreadable, *(one.rank for one in self.untraced)} - {-1})

    @property
    def window(self) -> bool:
        """Whether the records of any rank are a window."""
        return any(rank.window for rank in self.ranks)

    @property
    def processes(self) -> tuple[Rank, ...]:
        """All processes, those without a rank and those of linked jobs included."""
        own = (*self.ranks, *self.others)
        return (*own, *(process for run in self.linked for process in run.processes))

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each kept call; :func:`~ncclscope.model.frames.calls_frame`."""
        from ncclscope.model.frames import calls_frame

        return calls_frame(self)

    def _repr_html_(self) -> str:
        """Return the ranks as a table, for notebooks."""
        from ncclscope.model.frames import ranks_table

        return ranks_table(self.ranks)

    def members(self, key: str) -> Iterator[Rank]:
        """Return an iterator over the ranks with records of a communicator, in order."""
        return iter(self._members.get(key, ()))

    @cached_property
    def _members(self) -> dict[str, list[Rank]]:
        members: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            for key in rank.logs:
                members.setdefault(key, []).append(rank)
        return members
