"""The vocabulary: what was recorded, and what is concluded from it.

A :class:`Run` holds :class:`Rank` objects, a rank holds one
:class:`~ncclscope.logs.CallLog` for each :class:`Communicator` it is a member
of, a log holds :class:`Call` objects. Analyzers turn a run into
:class:`Finding` objects; a :class:`Verdict` is the one root cause among them,
and everything a reader of ``--json`` gets.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ncclscope import sites
from ncclscope.logs import last_of, newest_of
from ncclscope.signature import P2P_OPS, sign

if TYPE_CHECKING:
    from ncclscope.capture import Capture, Frame
    from ncclscope.device.stand import DeviceStand
    from ncclscope.graphs import Graph, Replay
    from ncclscope.logs import CallLog

__all__ = [
    "CREATION_SUFFIX",
    "Activity",
    "Call",
    "Communicator",
    "Finding",
    "Rank",
    "Run",
    "State",
    "Step",
]

CREATION_SUFFIX = "/groups"
"""Ends the key of a communicator on which groups are created and nothing else is posted."""

_NUMBER = re.compile(r":\d+")


class State(enum.IntEnum):
    """How far a call is known to have come."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2

    @property
    def word(self) -> str:
        """Spelling used in files and on screens."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Communicator:
    """A set of ranks that share one sequence of collectives.

    Attributes:
        key: What the members share and nobody else has; never the name, which each
            process counts for itself.
        label: Name for a person, such as ``tp:0``; not unique.
        ranks: Global ranks of the members, in the communicator's order.
        backend: ``nccl``, ``gloo``, ``shm``, ...
        created_at: The line of the user's program that made it, with its path, where that was seen.
        part: What it shares with those that play the same part in other replicas, where that
            was concluded from their numbers and members; empty where the label tells.
    """

    key: str
    label: str = ""
    ranks: tuple[int, ...] = ()
    backend: str = ""
    part: str = ""
    created_at: str | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """The label without its number: ``tp`` of ``tp:0``, ``tp/cpu`` of ``tp:0/cpu``.

        It is what the communicators share that play the same part in different replicas.
        """
        return self.part or _NUMBER.sub("", self.label)

    @property
    def creates_groups(self) -> bool:
        """Whether its calls are the creations of process groups, and no work."""
        return self.key.endswith(CREATION_SUFFIX)

    def to_dict(self) -> dict[str, Any]:
        """Returns the communicator in the terms of the JSON verdict."""
        return {
            "key": self.key,
            "label": self.label,
            "ranks": list(self.ranks),
            "backend": self.backend,
            "created_at": self.created_at,
        }


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call.

    Attributes:
        op: Canonical name, torch spelling (``all_reduce``, ``all_gatherv``, ``send``).
        comm: Key of the communicator.
        seq: Number on the communicator, from 1; point-to-point calls are counted apart.
        position: Number in the whole stream of the rank, from 0; with gaps among replays.
        dtype: Element type, such as ``bfloat16``; of a ``new_group`` its backend.
        redop: Reduction, such as ``sum``.
        root: Root as a rank of the communicator.
        peer: Other side of a send or receive, as a rank of the communicator.
        numel: Elements of the input.
        shape: Shape of the input; of a tensor of more than four dimensions the last ones
            are folded into the fourth.
        sizes: First dimensions per member of a v-collective, splits of an all_to_all, or
            global ranks of the members of a ``new_group``; None where there are none or they
            have been overwritten.
        out_sizes: What an all_to_all receives from each member, like ``sizes``, if recorded.
        out_shape: Shape of the output, where it was recorded.
        site: Where the call came from: ``file.py:120 function``.
        full_site: The same with the file's path, as far as that was recorded.
        user_site: The first frame of the user's own program, with its path, where ``site`` lies
            in an installed package.
        time_ns: Host clock at posting, nanoseconds since 1970.
        state: How far the call is known to have come.
        captured: Posted while a CUDA graph was being captured.
        group: Number of the NCCL group (ncclGroupStart) it was posted in; None outside.
        graph: Number of the CUDA graph it was captured into, or replayed from.
        signature: What the members must agree in, see :mod:`ncclscope.signature`.
        replay: Which replay of ``graph`` it is part of; None for a call that was posted.
    """

    op: str
    comm: str
    seq: int
    position: int
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    peer: int | None = None
    numel: int | None = None
    shape: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None
    out_shape: tuple[int, ...] | None = None
    site: str | None = None
    time_ns: int | None = None
    state: State = State.SCHEDULED
    captured: bool = False
    group: int | None = None
    graph: int | None = None
    signature: int = 0
    out_sizes: tuple[int, ...] | None = None
    replay: Replay | None = None
    full_site: str | None = field(default=None, compare=False)
    user_site: str | None = field(default=None, compare=False)

    def sign(self) -> int:
        """Returns the signature of what is known of it: its own where nothing of it is gone."""
        return sign(
            self.op,
            dtype=self.dtype,
            redop=self.redop,
            root=self.root,
            numel=self.numel,
            shape=self.shape,
            sizes=self.sizes,
            out_shape=self.out_shape,
            is_captured=self.captured,
            is_replayed=self.replay is not None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the parameters in the terms of the JSON verdict."""
        site = self.site and (self.full_site or self.site)
        return {
            "op": self.op,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "redop": self.redop,
            "root": self.root,
            "peer": self.peer,
            "sizes": None if self.sizes is None else list(self.sizes),
            "site": site,
            "user_site": self.user_site,
            "frame": sites.frame_of(site),
            "user_frame": sites.frame_of(self.user_site),
            "state": self.state.word,
            "replay": None if self.replay is None else self.replay.to_dict(self.graph),
        }


@dataclass(frozen=True, slots=True)
class DamagedCall(Call):
    """A call whose record contradicts the running hash: only its place is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: the calls from ``position`` on belong to it."""

    number: int
    position: int
    tokens: int | None = None
    dummy: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process does besides its calls, such as to wait for work: the newest time it did.

    Attributes:
        name: What it is, such as ``dequeue``.
        detail: A word more, such as the method that runs.
        number: Whatever it has a number of, such as the step; 0 for none.
        count: How often it had begun.
        since_ns: When it began, nanoseconds since 1970.
        until_ns: When it ended; None while it lasts, and where the process ended in it.
    """

    name: str
    detail: str | None
    number: int
    count: int
    since_ns: int
    until_ns: int | None = None


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
            count, where its records are elsewhere; see :mod:`ncclscope.analysis.posting_order`.
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
    device: Mapping[str, DeviceStand] = field(default_factory=dict)
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
    capture: Capture | None = None
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


@dataclass(frozen=True)
class Finding:
    """One analyzer's claim.

    Attributes:
        kind: One of the kinds of the contract, such as ``op_mismatch``.
        summary: One sentence for a person.
        comm: Where it happened; None where it is about a process.
        seq: First differing call on that communicator.
        diverging_ranks: Global ranks the records single out.
        candidate_ranks: When they single out none: the ranks among which it lies.
        odd: What the diverging rank posted; None when it posted nothing there.
        peers: What the majority posted.
        confidence: ``certain``, ``likely`` or ``ambiguous``.
        role: ``cause``, ``consequence`` or ``latent``.
        analyzer: Name of the analyzer.
        evidence: Statements read off the records.
        inferred: Statements that do not stand in the records but follow from them.
        extent: How many calls are concerned, such as the 17 of a swap; 0 where it has no
            meaning.
        aligned: Calls around the first difference side by side, a peer's and the diverging
            rank's, with None where one of them has no counterpart.
        accounts_for: Calls on other communicators, as key and number, that the finding explains
            too: the other half of a swap.
        survived: Calls after it that all members are known to have completed; 0 for none.
        odd_is: What ``odd`` is: ``call``, the call in question, or ``last_call``, the last that
            a rank posted which never came to that one.
        at: Where the first diverging rank is now, as its stack says; None without one.
    """

    kind: str
    summary: str
    comm: Communicator | None = None
    seq: int | None = None
    diverging_ranks: tuple[int, ...] = ()
    candidate_ranks: tuple[int, ...] = ()
    odd: Call | None = None
    peers: Call | None = None
    confidence: str = "certain"
    role: str = "cause"
    analyzer: str = ""
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    extent: int = 0
    aligned: tuple[tuple[Call | None, Call | None], ...] = ()
    accounts_for: tuple[tuple[str, int], ...] = ()
    survived: int = 0
    odd_is: str = "call"
    at: Frame | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of the JSON verdict."""
        return {
            "kind": self.kind,
            "summary": self.summary,
            "diverging_ranks": list(self.diverging_ranks),
            "candidate_ranks": list(self.candidate_ranks),
            "comm": None if self.comm is None else self.comm.to_dict(),
            "seq": self.seq,
            "odd": None if self.odd is None else {**self.odd.to_dict(), "is": self.odd_is},
            "at": None if self.at is None else self.at.full_site,
            "peers": None if self.peers is None else self.peers.to_dict(),
            "confidence": self.confidence,
            "evidence": list(self.evidence),
            "inferred": list(self.inferred),
        }
