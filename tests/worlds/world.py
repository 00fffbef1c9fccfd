"""A world: the communicators of a small job and a program for each of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

__all__ = ["COLLECTIVES", "ENDINGS", "HOLDS", "P2P", "Act", "Loss", "World", "describe"]

P2P = ("send", "recv")
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "all_to_all",
)
ENDINGS = ("raise", "kill")
"""Acts with which a process ends."""
HOLDS = ("stop", "outside", "busy")
"""Acts that hold a process up: for ever, or for a while (``busy``)."""


@dataclass(frozen=True)
class Act:
    """One thing that a rank does: a call, or what keeps it from further calls.

    Attributes:
        op: A collective, ``send``, ``recv``, or one of :data:`ENDINGS` and :data:`HOLDS`.
        comm: Label of the communicator; empty for what is no call.
        shape: Of the input.
        dtype: Element type.
        redop: Reduction.
        root: Root, as a rank of the communicator.
        peer: Other side of a transfer, as a rank of the communicator.
        line: Line of the program that makes the call.
        batch: Number of the group of calls that are started together; 0 for none.
        waits: Whether the host waits for the call on NCCL. On gloo it waits for all calls.
        round: Number of the round that it belongs to; -1 before and after the rounds.
        thread: Number of the thread that does it; threads act independently of each other.
    """

    op: str
    comm: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    redop: str | None = None
    root: int | None = None
    peer: int | None = None
    line: int = 0
    batch: int = 0
    waits: bool = False
    round: int = -1
    thread: int = 0

    @property
    def is_call(self) -> bool:
        """Whether it is recorded as a call."""
        return bool(self.comm)

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.op in P2P

    @property
    def site(self) -> str:
        """The call site as a ring records it."""
        return f"train.py:{self.line} step"

    @property
    def signature(self) -> tuple[object, ...]:
        """What the records show of a call, besides its line."""
        return self.op, self.shape, self.dtype, self.redop, self.root, self.peer

    @property
    def size(self) -> tuple[int, int]:
        """Elements and bytes of each."""
        if self.op == "barrier":
            return 0, 0
        wide = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2}
        return prod(self.shape), wide.get(self.dtype, 4)


@dataclass(frozen=True)
class Loss:
    """What of a job is not recorded.

    Attributes:
        missing: Ranks without a ring.
        keeps: Newest records that each ring keeps; 0 for all.
        killed_after: Seconds after which somebody kills a job that does not move; 0 if nobody does.
    """

    missing: tuple[int, ...] = ()
    keeps: int = 0
    killed_after: float = 0.0


@dataclass
class World:
    """A small job.

    Attributes:
        size: World size.
        backend: ``nccl`` or ``gloo``.
        comms: Members of each communicator, by label.
        programs: What each rank does.
        streams: Stream of each communicator that has another one than the main stream (0).
        absent: Ranks that never start.
        running: Share of the job's acts after which it is observed; None at its end.
        lingers: Whether processes live on after their program.
        severed: Whether the end of a process breaks its connections, so that on gloo those that
            wait for it fail; else they wait, as for a host that is gone.
        loss: What is not recorded.
        seed: Of the order in which ranks act, and of the time between two acts.
    """

    size: int
    backend: str
    comms: dict[str, tuple[int, ...]]
    programs: list[list[Act]]
    streams: dict[str, int] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    running: float | None = None
    lingers: bool = False
    severed: bool = False
    loss: Loss = field(default_factory=Loss)
    seed: str = ""

    def calls(self, rank: int, comm: str) -> list[Act]:
        """Return the calls of a rank on a communicator, in the order of its program."""
        return [act for act in self.programs[rank] if act.comm == comm]


def describe(world: World, posted: Mapping[int, int]) -> Iterable[str]:
    """Yield the lines of a listing of a world.

    Args:
        world: The world.
        posted: Number of acts that each rank has begun.
    """
    yield f"{world.size} ranks on {world.backend}, {world.loss}, running={world.running}"
    for label, members in world.comms.items():
        stream = f", stream {world.streams[label]}" if label in world.streams else ""
        yield f"  {label}: {list(members)}{stream}"
    for ranks in _alike(world):
        yield f"ranks {list(ranks)}, of whose acts {[posted.get(rank, 0) for rank in ranks]} began:"
        for number, act in enumerate(world.programs[ranks[0]]):
            yield f"  {number:3} {_text(act)}"


def _alike(world: World) -> list[Sequence[int]]:
    """Return the ranks by program."""
    found: dict[tuple[Act, ...], list[int]] = {}
    for rank, program in enumerate(world.programs):
        found.setdefault(tuple(program), []).append(rank)
    return list(found.values())


def _text(act: Act) -> str:
    thread = f", thread {act.thread}" if act.thread else ""
    if not act.is_call:
        return act.op + thread
    extra = "".join(
        f" {name}={value}"
        for name, value in (("redop", act.redop), ("root", act.root), ("peer", act.peer))
        if value is not None
    )
    group = f" group {act.batch}" if act.batch else ""
    waits = ", host waits" if act.waits else ""
    where = f"train.py:{act.line}, round {act.round}{waits}{thread}"
    return f"{act.op} on {act.comm} {list(act.shape)} {act.dtype}{extra}{group} ({where})"
