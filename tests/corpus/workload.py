"""Small jobs as data: what each rank posts, and how far that gets it.

A :class:`Workload` is a program for each rank. :meth:`Workload.play` carries the programs out on
paper: a collective completes when all members of its communicator have posted it with parameters
that fit, and each rank's calls run in the order in which it posted them. What is written to disk
afterwards is therefore consistent, whatever was planted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

__all__ = ["History", "Post", "Posted", "Workload"]

BEGAN_NS = 1_795_000_000 * 10**9
STEP_NS = 10**6
SENDS = ("send", "recv")


@dataclass(frozen=True, eq=False)
class Post:
    """One call in the program of one rank.

    Attributes:
        op: In torch's spelling.
        group: Label of its communicator.
        shape: Of the input.
        dtype: Element type.
        more: What only some calls have: ``redop``, ``root``, ``peer`` (a rank of the
            communicator), ``sizes``, ``out_sizes``, ``out_shape``, ``site``, ``frames``.
        batch: Number of the NCCL group that it is a part of; 0 for none.
        captured: Whether it is captured into a CUDA graph and not carried out.
        silent: Whether no probe sees it.
        waits: Whether the host waits until it has completed.
    """

    op: str
    group: str
    shape: tuple[int, ...]
    dtype: str
    more: Mapping[str, Any]
    batch: int = 0
    captured: bool = False
    silent: bool = False
    waits: bool = False


@dataclass(eq=False)
class Posted:
    """A call that was posted.

    Attributes:
        post: The call.
        time_ns: When.
        place: Number among the calls of its rank that are paired alike, from 0.
        done: Whether it completed.
        running: Whether it was the first that had not.
    """

    post: Post
    time_ns: int
    place: int
    done: bool = False
    running: bool = False


@dataclass
class History:
    """Outcome of a job.

    Attributes:
        posted: Calls of each rank, in order.
        last_seen_ns: Last sign of life of each rank.
        ended: How the processes ended that did: ``exit``, ``killed`` or the text of an exception.
    """

    posted: list[list[Posted]]
    last_seen_ns: list[int]
    ended: dict[int, str]


@dataclass
class Workload:
    """Programs of all ranks of a job.

    Attributes:
        size: World size.
        groups: Members of each communicator, by label.
        backend: ``nccl`` (the host goes on after posting) or ``gloo`` (it waits for each call).
        seed: Of the time between two calls.
        quiet: Seconds for which living ranks are watched after the last call.
        rounds: Calls of each rank before the records are taken from the running job; all at None.
        running: Whether processes that have come to the end of their program live on.
        streams: Whether each communicator has a stream of its own.
        aborted: How all processes end that are left at the end; empty where they live on.
        keep: Entries that each dump or trace keeps; all when None.
        capacity: Records that each ring keeps.
        no_dump: Ranks that leave no dump, whatever became of them.
        no_ring: Ranks that leave no ring or trace.
        bare: Whether traces hold what the format requires and what distinguishes calls, alone.
        timed_out: Whether the watchdog gave up what was pending.
        timing: Whether dumps mark calls that have started.
        about: What each ring says of its process, by rank; -1 for all.
        lines: What each trace has besides calls, by rank.
    """

    size: int = 4
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    backend: str = "nccl"
    seed: str = ""
    quiet: float = 600.0
    rounds: int | None = None
    running: bool = False
    streams: bool = False
    aborted: str = ""
    keep: int | None = None
    capacity: int = 1024
    no_dump: tuple[int, ...] = ()
    no_ring: tuple[int, ...] = ()
    bare: bool = False
    timed_out: bool = False
    timing: bool = False
    about: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = {"world": self.everybody, **self.groups}
        self.programs: list[list[Post]] = [[] for _ in range(self.size)]
        self.ends: dict[int, str] = {}
        self._batches = 0

    @property
    def everybody(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.size))

    @property
    def odd(self) -> int:
        """The rank in which a fault is planted."""
        return self.size - 1

    @property
    def rest(self) -> tuple[int, ...]:
        """All others."""
        return self.everybody[:-1]

    def but(self, *ranks: int) -> tuple[int, ...]:
        """Return all ranks but these."""
        return tuple(rank for rank in self.everybody if rank not in ranks)

    def post(
        self,
        ranks: Iterable[int],
        op: str = "all_reduce",
        *shape: int,
        group: str = "world",
        dtype: str = "float32",
        batch: int = 0,
        captured: bool = False,
        silent: bool = False,
        waits: bool | None = None,
        **more: Any,
    ) -> None:
        """Add one call to the programs of some ranks."""
        waits = waits if waits is not None else self.backend == "gloo" or op == "barrier"
        call = Post(op, group, shape or (4, 2), dtype, more, batch, captured, silent, waits)
        for rank in ranks:
            if rank not in self.groups[group]:
                raise ValueError(f"rank {rank} is no member of {group}")
            self.programs[rank].append(call)

    def batch(self) -> int:
        """Return the number of another NCCL group."""
        self._batches += 1
        return self._batches

    def end(self, rank: int, how: str = "killed") -> None:
        """Let a process end once it has made all calls of its program that it can make."""
        self.ends[rank] = how

    def next(self, group: str = "world", rank: int = 0, *, p2p: bool = False) -> int:
        """Return the number that the next call of a rank on a communicator will have."""
        calls = [c for c in self.programs[rank] if c.group == group and not c.silent]
        return 1 + sum((call.op in SENDS) == p2p for call in calls)

    def steps(self, count: int = 3) -> None:
        """Add steps of a healthy program, on all communicators."""
        for step in range(count):
            self.post(self.everybody, "all_reduce", 8 + step, 2, site="train.py:31 forward")
            for label, members in self.groups.items():
                if label != "world":
                    self.post(members, "all_reduce", 4, 2, group=label, site="layers.py:77 apply")
            self.post(self.everybody, "all_gather", 4, 2, site="train.py:44 backward")

    # --- carried out ----------------------------------------------------------------------------

    def play(self) -> History:
        """Carry the programs out."""
        return _Execution(self).run()


class _Execution:
    """The programs of a workload while they run."""

    def __init__(self, workload: Workload) -> None:
        self._work = workload
        self._random = random.Random(workload.seed)
        self._clock = BEGAN_NS
        self._next = [0] * workload.size
        self._posted: list[list[Posted]] = [[] for _ in range(workload.size)]
        self._pending: list[list[Posted]] = [[] for _ in range(workload.size)]
        self._queues: dict[tuple[Any, ...], list[Posted]] = {}

    def run(self) -> History:
        work, rounds = self._work, 0
        while (work.rounds is None or rounds < work.rounds) and self._turn():
            rounds += 1
        for rank in work.everybody:
            for posted in self._pending[rank]:
                posted.running = self._heads(rank, posted)
        finished = all(
            self._next[rank] == len(work.programs[rank]) and not self._pending[rank]
            for rank in work.everybody
        )
        return self._history(finished)

    def _turn(self) -> bool:
        """Let each rank post one call, and complete what can complete."""
        moved = False
        for rank in self._work.everybody:
            moved = self._post(rank) or moved
        while self._complete():
            moved = True
        return moved

    def _post(self, rank: int) -> bool:
        program = self._work.programs[rank]
        blocked = any(posted.post.waits for posted in self._pending[rank])
        if blocked or self._next[rank] == len(program):
            return False
        call = program[self._next[rank]]
        self._next[rank] += 1
        self._clock += STEP_NS + self._random.randrange(STEP_NS)
        queue = self._queues.setdefault(self._queue(rank, call), [])
        posted = Posted(call, self._clock, len(queue))
        queue.append(posted)
        self._posted[rank].append(posted)
        if not call.captured:
            self._pending[rank].append(posted)
        return True

    def _queue(self, rank: int, call: Post) -> tuple[Any, ...]:
        """Return the key by which a call is paired: its number among the calls of that key."""
        if call.op not in SENDS:
            return call.group, rank
        own = self._work.groups[call.group].index(rank)
        pair = (own, call.more["peer"]) if call.op == "send" else (call.more["peer"], own)
        return (call.group, *pair, call.op)

    def _complete(self) -> bool:
        """Complete the calls whose members have all come to them."""
        moved = False
        for rank in self._work.everybody:
            # What waits behind a call that waits waits as well: asking again would take most of
            # the time. What is completed meanwhile is seen by the next round.
            held = set()
            for posted in list(self._pending[rank]):
                stream = posted.post.group if self._work.streams else ""
                if stream in held:
                    continue
                if not self._heads(rank, posted):
                    held.add(stream)
                    continue
                others = self._others(rank, posted)
                if others is None or not _fit([posted, *(other for _, other in others)]):
                    continue
                if all(other.post.captured or self._heads(r, other) for r, other in others):
                    for number, other in [(rank, posted), *others]:
                        other.done = not other.post.captured
                        if other in self._pending[number]:
                            self._pending[number].remove(other)
                    moved = True
        return moved

    def _heads(self, rank: int, posted: Posted) -> bool:
        """Return whether nothing that a rank posted earlier holds a call up."""
        call = posted.post
        for earlier in self._pending[rank]:
            if earlier is posted:
                return True
            together = earlier.post.batch and earlier.post.batch == call.batch
            if not together and not (self._work.streams and earlier.post.group != call.group):
                return False
        return False

    def _others(self, rank: int, posted: Posted) -> list[tuple[int, Posted]] | None:
        """Return the same call of the other members; None while one has not posted it."""
        call = posted.post
        members = self._work.groups[call.group]
        if call.op in SENDS:
            one, two = members.index(rank), call.more["peer"]
            pair = (one, two, "recv") if call.op == "send" else (two, one, "send")
            keys = [((call.group, *pair), members[two])]
        else:
            keys = [((call.group, member), member) for member in members if member != rank]
        found = []
        for key, member in keys:
            queue = self._queues.get(key, [])
            if len(queue) <= posted.place:
                return None
            found.append((member, queue[posted.place]))
        return found

    def _history(self, finished: bool) -> History:
        work = self._work
        last = self._clock + int(work.quiet * 1e9)
        seen, ended = [], {}
        for rank in work.everybody:
            own = self._posted[rank]
            seen.append(last)
            if rank in work.ends:
                ended[rank] = work.ends[rank]
                seen[rank] = (own[-1].time_ns if own else BEGAN_NS) + STEP_NS
            elif work.aborted:
                ended[rank] = work.aborted
            elif finished and not work.running and work.rounds is None:
                ended[rank] = "exit"
                seen[rank] = self._clock + (rank + 1) * STEP_NS
        return History(self._posted, seen, ended)


def _fit(same: Sequence[Posted]) -> bool:
    """Return whether the members of a call have posted what completes."""
    calls = [posted.post for posted in same]
    if calls[0].op in SENDS:
        return len({(prod(call.shape), call.dtype) for call in calls}) == 1
    return len({_agreed(call) for call in calls}) == 1 and not any(
        call.more.get("unfit") for call in calls
    )


def _agreed(call: Post) -> tuple[Any, ...]:
    """Return the parameters that members must have in common."""
    size: Any = prod(call.shape)
    if call.op in ("all_gatherv", "reduce_scatterv"):
        size = call.more["sizes"]
    elif call.op in ("all_to_all", "scatter", "gather"):
        size = None
    more = call.more
    return call.op, call.dtype, more.get("redop"), more.get("root"), size, call.captured
