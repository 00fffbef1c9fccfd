"""How processes move between samples of their stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ncclscope.engine.processes.frames import (
    INIT_OPS,
    POSTED_BY_CPP,
    collective_of,
    is_library,
    is_stuck_alone,
    program_frame,
    runs_own_code,
    unrecorded_of,
    user_frame,
    wait_of,
    waited_call,
)
from ncclscope.engine.processes.requests import is_fed, is_of_workers, waits_in_thread
from ncclscope.engine.processes.work import work_of
from ncclscope.model import Run
from ncclscope.model.snapshot import Frame, Snapshot, Stacks, Worker
from ncclscope.untrusted import printable
from ncclscope.wording.stacks import OPS, REASONS, Seen, Sign

_FOR_OTHERS = frozenset({"answer", "collective", "device", "queue"})
"""Waits of an engine for its workers, for requests, or for other engines."""
BUSY = 0.2
"""Share of a core above which a thread without a known wait is working."""
IDLE = 0.05
"""Share of a core below which a thread computes nothing; polling takes less."""
_C10D = re.compile(r"(?:^|/)torch/distributed/(?:distributed_c10d|c10d_logger)\.py$")
_POOL = re.compile(r"(?:^|/)concurrent/futures/\w+\.py$")
_POLLS = re.compile(r"(?:^|\.)(?:sleep|select|poll|wait)$")
_OF_LIBRARIES = frozenset({"child", "data", "lock", "socket", "started"})
"""Waits that frames of a library show, and that end without a peer."""


@dataclass(frozen=True)
class Movement:
    """That a rank moves.

    Attributes:
        sign: What shows it.
        amounts: The numbers in the wording of that sign.
    """

    sign: Sign
    amounts: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.sign.of(*self.amounts)


@dataclass(frozen=True)
class Sample:
    """The most relevant thread of a rank in one sample."""

    thread: str = ""
    frames: tuple[Frame, ...] = ()
    op: str | None = None
    waits: str | None = None
    collective: Sample | None = None
    """The same cut at a collective, whose function runs the program's own code."""

    @property
    def key(self) -> tuple[tuple[str, str, int], ...]:
        return key_of(self.frames, self.op, self.waits)

    @property
    def counters(self) -> list[dict[str, int]]:
        return [dict(frame.counters) for frame in self.frames]


def sample_of(stacks: Stacks) -> Sample:
    """Return the most relevant thread: one in a collective, otherwise the main thread."""
    found = [_cut(thread.name, thread.frames) for thread in stacks.threads if thread.frames]
    if not found:
        return Sample()
    main = next((one for one in found if one.thread == "MainThread"), found[0])
    if main.waits in ("collective", "device"):
        return main
    # Another thread may post the collective while the main one waits for it, as in a backward,
    # whose hooks run on the threads of the devices.
    others = [one.collective or one for one in found if one is not main]
    posting = [one for one in others if one.waits == "collective"]
    is_behind = (
        main.waits in ("lock", "queue", "started") or unrecorded_of(main.frames) == "backward"
    )
    if posting and is_behind:
        return posting[0]
    if _awaits_pool(main) and any(map(_runs_in_pool, others)):
        return replace(main, op="wait", waits="collective")
    return main


def _awaits_pool(one: Sample) -> bool:
    """Return whether a thread waits for what another one of a pool does."""
    return one.waits == "lock" and any(_POOL.search(frame.file) for frame in one.frames)


def _runs_in_pool(one: Sample) -> bool:
    """Return whether a thread of a pool is in a function in C, which may wait for a peer."""
    last = one.frames[-1]
    return one.waits is None and last.name == "run" and bool(_POOL.search(last.file))


def _cut(thread: str, frames: tuple[Frame, ...]) -> Sample:
    """Cut a stack below the innermost frame that shows what it waits for."""
    for index in range(len(frames) - 1, -1, -1):
        op = collective_of(frames[index])
        if op is not None:
            inside = _of_program(thread, frames, index)
            if runs_own_code(frames, index):
                return _cut_at_wait(thread, frames, index + 1, inside)
            return inside
    return _cut_at_wait(thread, frames, 0)


def _of_program(thread: str, frames: tuple[Frame, ...], index: int) -> Sample:
    """Return the stack down to the collective that the program called.

    Those of objects make several calls: ranks in different ones of them are in one call.
    """
    op, last = collective_of(frames[index]), index
    for place in range(index - 1, -1, -1):
        if not _C10D.search(frames[place].file):
            break
        outer = collective_of(frames[place])
        if outer is not None and outer not in INIT_OPS:
            op, last = outer, place
    return Sample(thread, frames[: last + 1], op, "collective")


def _cut_at_wait(
    thread: str, frames: tuple[Frame, ...], start: int, collective: Sample | None = None
) -> Sample:
    for index in range(start, len(frames)):
        what = wait_of(frames[index])
        if what is not None:
            return Sample(thread, frames[: index + 1], None, what, collective)
    return Sample(thread, frames, None, None, collective)


def change_of(samples: Sequence[Sample]) -> Movement | None:
    """Return what changed between the samples; None where all are equal."""
    last = samples[-1]
    for one in samples[:-1]:
        if one.key != last.key:
            return Movement(Sign.STACK)
        if one.counters != last.counters:
            return Movement(Sign.COUNTER)
    return None


def polled(samples: Sequence[Sample], main_cpu: float) -> Sample | None:
    """Return the sample in which a rank polls for something; None where it does not poll.

    A polling rank stays in one function, mostly sleeps there, and uses no CPU time. Stacks that
    differ only by what it checks in between are no progress.
    """
    if main_cpu > IDLE or len(samples) < 2 or any(one.waits == "collective" for one in samples):
        return None
    frames = [one.frames for one in samples]
    depth = 0
    for level in zip(*frames, strict=False):
        if len({(frame.file, frame.function) for frame in level}) > 1:
            break
        if any(frame.counters != level[0].counters for frame in level):
            return None
        depth += 1
        if len({frame.line for frame in level}) > 1:
            break
    if not depth:
        return None
    asleep = [
        one
        for one in samples
        if len(one.frames) == depth and any(map(_POLLS.search, one.frames[-1].calls))
    ]
    if len({one.key for one in samples}) < 2 or 2 * len(asleep) < len(samples):
        return None
    return Sample(asleep[-1].thread, asleep[-1].frames, None, "poll")


def without_own_code(
    samples: Sequence[Sample], worker: Worker, main_cpu: float
) -> Sequence[Sample]:
    """Return the samples, cut at the collective unless code of the program below it is stuck.

    A communication library of the user's own may wait there for a peer.
    """
    last = samples[-1]
    if all(one.collective for one in samples) and worker.samples:
        blocked = worker.samples[-1].blocked
        is_stuck = last.waits in _OF_LIBRARIES or (
            last.waits is None and is_stuck_alone(last.frames[-1], blocked, main_cpu > BUSY)
        )
        if polled(samples, main_cpu) is not None or (is_stuck and not change_of(samples)):
            return samples
    return [one.collective or one for one in samples]


def key_of(
    frames: Sequence[Frame], op: str | None, waits: str | None
) -> tuple[tuple[str, str, int], ...]:
    """Return the functions and lines of a stack; without the last line where it says nothing.

    A library waits for one thing at several lines, and a loop that polls is seen at any of its
    lines. In the user's program, another line is another call: each work has its own wait.
    """
    last = len(frames) - 1
    waiting = bool(frames) and (op is not None or waits is not None)
    is_loose = waiting and (waits == "poll" or is_library(frames[-1]))
    return tuple(
        (frame.file, frame.function, 0 if is_loose and index == last else frame.line)
        for index, frame in enumerate(frames)
    )


MANY_SWITCHES = 10.0
"""Context switches per second above which a thread makes progress.

A thread that hangs in a gloo collective makes none in seconds; one that exchanges small tensors
makes thousands.
"""
POLLS = 0.5
"""The same for a thread that polls with a timeout, as for the answer of a server: who waits for
something that never comes does not wake."""
STARTED_BUSY = 0.1
"""The same for all processes that a rank has started: it may wait for one that shares a core."""
MOVED_BYTES = 1 << 16
"""Bytes that a rank reads and writes between two samples, above which it makes progress."""
STARVED = 0.6
"""Share of the time for which a thread that is ready to run has no processor, above which it is
starved. Two threads that spin on one processor have none half of the time."""
SOON_SECONDS = 60.0
"""Seconds within which a sleep must end for the rank to count as late."""
_COMMUNICATES = re.compile(r"gloo|nccl|mpi", re.IGNORECASE)
_USES_GPU = re.compile(r"cuda|nccl", re.IGNORECASE)
_ENGINES = re.compile(r"(?:^|/)(?:vllm|sglang|ray)/")
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Motion:
    """What one rank was doing, and whether it moved between the samples.

    Attributes:
        worker: The process.
        condition: ``moving``, ``still``, ``stopped`` (by a signal), ``ended`` or ``unread``.
        waits: What it waits for: ``collective`` or ``device``; or without a peer: ``queue`` (for
            work), ``lock``, ``file``, ``socket``, ``data``, ``child``, ``started`` (processes),
            ``sleep``, ``poll``; None where that is not known.
        op: The collective that it is in; also ``new_group``, ``store``, ``wait``, ``p2p``, or the
            function of torch.distributed that it is in.
        unrecorded: Whether C++ posted that collective, so that only its caller is known: ``op`` is
            then ``backward`` or ``forward``.
        frames: Stack of the most relevant thread, the outermost frame first, down to the wait.
        thread: That thread's name.
        cpu: Share of a core that the process used between the samples.
        main_cpu: Share of a core that its main thread used.
        delayed: Share of the time in which its main thread was ready and had no processor.
        movement: Why it counts as moving; None where it does not move.
        engine: Which engine it is the motion of, and whether that is stopped; empty for its own.
    """

    worker: Worker
    condition: str
    waits: str | None = None
    op: str | None = None
    unrecorded: bool = False
    frames: tuple[Frame, ...] = ()
    thread: str = ""
    cpu: float = 0.0
    main_cpu: float = 0.0
    delayed: float = 0.0
    movement: Movement | None = None
    engine: str = ""

    @property
    def sign(self) -> Sign | None:
        """What shows that it moves; None where it does not move."""
        return None if self.movement is None else self.movement.sign

    @property
    def why(self) -> str:
        """Why it counts as moving, in words; empty where it does not move."""
        return "" if self.movement is None else str(self.movement)

    @property
    def wakes(self) -> float | None:
        """Seconds after which the timed sleep ends that it spent all samples in; None for none."""
        return self.movement.amounts[0] if self.movement and self.sign is Sign.SLEEPS else None

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.worker.rank

    @cached_property
    def place(self) -> Frame | None:
        """The innermost frame outside of torch's communication."""
        return program_frame(self.frames)

    @cached_property
    def user_place(self) -> Frame | None:
        """The innermost frame of the user's own program; None where that is not known."""
        return user_frame(self.frames)

    @cached_property
    def key(self) -> tuple[tuple[str, str, int], ...]:
        """Key that ranks with the same stack share."""
        return key_of(self.frames, self.op, self.waits)

    @property
    def is_waiting(self) -> bool:
        """Whether it is still and waits for its peers or the GPU."""
        return self.condition == "still" and self.waits in ("collective", "device")

    @cached_property
    def work(self) -> str:
        """What keeps it busy, such as ``torch.compile``, if it waits for no other rank."""
        found = None if self.op or self.waits == "queue" else work_of(self.frames)
        return found[0] if found else ""

    @property
    def is_at_work(self) -> bool:
        """Whether it moves, or what it started does, outside of any collective."""
        return self.condition == "moving" and bool(self.frames) and not (self.op or self.unrecorded)

    @property
    def is_at_one_line(self) -> bool:
        """Whether it does not go on: it waits, or spins at one line."""
        return self.condition == "still" or self.sign is Sign.CORE

    @property
    def is_unfed(self) -> bool:
        """Whether it waits in a queue of its own process, which has no other thread to fill it."""
        if self.condition != "still" or not self.frames or self.frames[-1].base != "queue.py":
            return False
        return not self.worker.stacks or not is_fed(self.worker.stacks[-1], self.thread)

    @property
    def may_be_idle(self) -> bool:
        """Whether it, or a thread that it waits for, waits for input: a server without requests."""
        if self.waits == "queue" or (self.frames and self.frames[-1].name == "accept"):
            return True
        stacks = self.worker.stacks
        return bool(stacks) and waits_in_thread(stacks[-1], self.thread, self.frames)

    @property
    def is_served(self) -> bool:
        """Whether it waits in the loop of an engine, which brings requests or none."""
        return any(_ENGINES.search(frame.file) for frame in self.frames)

    @cached_property
    def _at(self) -> Frame | None:
        """The frame to show: the innermost one of the program, or the one that began the work."""
        found = work_of(self.frames) if self.work else None
        above = self.frames[: found[1]] if found else ()
        return program_frame(above) if above else self.place

    @property
    def text(self) -> str:
        """What the rank is in: ``all_reduce at hang.py:3 step``."""
        return self.remarked(*filter(None, [self.engine]))

    def remarked(self, *remarks: str) -> str:
        """Return what the rank is in, and remarks: ``wait at a.py:3 (sleeps; it woke)``."""
        reason = REASONS.get(self.waits or "") if self._at is not None else None
        shown = "; ".join([*([f"{reason}{self._beside}"] if reason else ()), *remarks])
        return f"{self._where} ({shown})" if shown else self._where

    @property
    def _where(self) -> str:
        place = self._at
        if place is None:
            return str(Seen.NO_FRAME)
        name = self.op or self.work or None
        what = Seen.COLLECTIVE_OF.of(name) if self.unrecorded else OPS.get(name or "", name)
        text = f"{what} at {place.site}" if what is not None else place.site
        user = self.user_place
        if user is not None and user != place:
            text += f", from {user.site}"
        return text

    @property
    def _beside(self) -> str:
        """Where the only other thread in the program is, for which one at a lock may wait."""
        threads = self.worker.stacks[-1].threads if self.worker.stacks else ()
        places = [
            (one.name, frame)
            for one in threads
            if one.name != self.thread and (frame := user_frame(one.frames)) is not None
        ]
        if self.waits != "lock" or len(places) != 1:
            return ""
        ((name, frame),) = places
        return Seen.BESIDE.of(printable(name)[:_LONGEST_NAME], frame.site)


def waits_for_requests(stacks: Stacks) -> bool:
    """Return whether a process waits for input from another thread or process of its job."""
    one = sample_of(stacks)
    if one.waits == "queue":
        return one.frames[-1].base != "queue.py" or is_fed(stacks, one.thread)
    return waits_in_thread(stacks, one.thread, one.frames)


def starved(snapshot: Snapshot | None) -> dict[int, float]:
    """Return the share of the time for which ranks that need a processor had none, by rank.

    Only ranks to which that happened for most of the time: they may be slow, not stuck.
    """
    if snapshot is None:
        return {}
    motions = read_motions(snapshot)
    return {rank: one.delayed for rank, one in motions.items() if one.delayed >= STARVED}


def read_motions(snapshot: Snapshot) -> dict[int, Motion]:
    """Return what each rank was doing, by rank."""
    several = len(snapshot.workers) > 1
    return {worker.rank: _motion(worker, snapshot, several) for worker in snapshot.workers}


def read_places(snapshot: Snapshot) -> list[Motion]:
    """Return what each rank was doing; a worker without work is where its engine is.

    Only if other ranks wait, and unless that engine moves, or waits itself: for requests, for
    answers, or for other engines.
    """
    motions, engines = [*read_motions(snapshot).values()], read_engines(snapshot)
    if not any(one.is_waiting for one in motions):
        return motions
    held = [one for one in engines if _keeps_itself(one)]
    return [_at_engine(one, held, len(engines)) for one in motions]


def _keeps_itself(engine: Motion) -> bool:
    if engine.condition == "stopped":
        return True
    waits = engine.op is not None or engine.waits in _FOR_OTHERS
    return engine.is_at_one_line and bool(engine.frames) and not waits


def _at_engine(rank: Motion, held: Sequence[Motion], engines: int) -> Motion:
    if rank.condition != "still" or rank.waits != "queue" or not is_of_workers(rank.frames):
        return rank
    replica = rank.worker.labels.get("dp")
    own = [one for one in held if engines == 1 or one.worker.labels.get("dp") == replica]
    if len(own) != 1:
        return rank
    said = Seen.IN_STOPPED_ENGINE if own[0].condition == "stopped" else Seen.IN_ENGINE
    return replace(
        own[0],
        worker=replace(rank.worker, stacks=own[0].worker.stacks, samples=own[0].worker.samples),
        condition="still",
        engine=said.of(own[0].worker.pid),
    )


def read_engines(snapshot: Snapshot) -> list[Motion]:
    """Return what the engines did that send workers their requests."""
    return [_motion(engine, snapshot, several=True) for engine in snapshot.engines]


def read_servers(snapshot: Snapshot) -> list[Motion]:
    """Return what the processes did that receive requests, or pass messages between engines."""
    return [_motion(server, snapshot, several=True) for server in snapshot.servers]


def _motion(worker: Worker, snapshot: Snapshot, several: bool) -> Motion:
    gap = snapshot.gap
    states = [sample.state for sample in worker.samples]
    last = states[-1] if states else ""
    cpu = main_cpu = delayed = switches = 0.0
    if len(worker.samples) > 1:
        first, second = worker.samples[0], worker.samples[-1]
        span = max(gap, 0.001)
        cpu = max(0.0, second.cpu_seconds - first.cpu_seconds) / span
        main_cpu = max(0.0, second.main_cpu_seconds - first.main_cpu_seconds) / span
        delayed = max(0.0, second.main_delayed_seconds - first.main_delayed_seconds) / span
        switches = max(0, second.switches - first.switches)
    if last and last in "XZ":
        return Motion(worker, "ended")
    read = [sample_of(stacks) for stacks in worker.stacks if stacks.threads]
    if not read:
        condition = "stopped" if last in ("T", "t") else "unread"
        return Motion(worker, condition, cpu=cpu, main_cpu=main_cpu, delayed=delayed)
    samples = without_own_code(read, worker, main_cpu)
    polling = polled(samples, main_cpu)
    one = polling or samples[-1]
    condition, movement = "still", None
    if last in ("T", "t"):
        condition = "stopped"
    elif len(samples) < 2:
        condition, movement = "moving", Movement(Sign.ONE_SAMPLE)
    elif polling is None:
        movement = change_of(samples)
        condition = "moving" if movement else "still"
    op, waits, unrecorded = one.op, one.waits, False
    if waits is None and condition != "moving":
        op, waits, unrecorded = _behind(worker, one.frames, main_cpu, several)
    if condition == "still":
        # Switches and system call are those of the main thread.
        own = switches if one.thread in ("", "MainThread") else 0.0
        movement = _activity(op, waits, worker, main_cpu, own, gap)
        if movement is None and waits == "sleep":
            movement = _sleep(worker, snapshot)
        condition = "moving" if movement else "still"
    if condition == "moving" and one.waits is None:
        op, waits, unrecorded = None, None, False
    return Motion(
        *(worker, condition, waits, op, unrecorded, one.frames, one.thread),
        *(cpu, main_cpu, delayed, movement),
    )


def _behind(
    worker: Worker, frames: Sequence[Frame], main_cpu: float, several: bool
) -> tuple[str | None, str | None, bool]:
    """Return what a stack that did not change waits for in C++: collective, wait, unrecorded."""
    last = worker.samples[-1] if worker.samples else None
    threads = last.threads if last else {}
    communicates = several or worker.world_size > 1 or any(map(_COMMUNICATES.search, threads))
    if communicates and main_cpu < IDLE and (op := unrecorded_of(frames)) is not None:
        return op, "collective", op in POSTED_BY_CPP
    if last is None or not frames:
        return None, None, False
    op, waits = waited_call(frames[-1], last.blocked, any(map(_USES_GPU.search, threads)))
    return op, waits, False


def _activity(
    op: str | None,
    waits: str | None,
    worker: Worker,
    main_cpu: float,
    switches: float,
    gap: float,
) -> Movement | None:
    """Return other evidence that a rank with the same stack in all samples moves."""
    rate = switches / max(gap, 0.001)
    blocked = worker.samples[-1].blocked if worker.samples else ""
    if waits == "collective" and op not in INIT_OPS and switches:
        if rate > MANY_SWITCHES:
            return Movement(Sign.SWITCHES, (rate,))
        return Movement(Sign.WAKES, (switches, gap))
    least = POLLS if blocked == "poll" else MANY_SWITCHES
    if waits is None and rate > least and blocked != "sleep":
        return Movement(Sign.SWITCHES, (rate,))
    if waits in (None, "sleep", "file") and main_cpu > BUSY:
        return Movement(Sign.CORE, (main_cpu,))
    return None if waits in ("collective", "device") else _work_beside(worker, waits, gap)


def _sleep(worker: Worker, snapshot: Snapshot) -> Movement | None:
    """Return the timed sleep that a rank is in; None if it lasts for long, or is one of many.

    It is the only one if the rank has not woken since the first sample, or if it goes on for longer
    than the samples took.
    """
    if not all(sample.wakes_ns for sample in worker.samples):
        return None
    last = worker.samples[-1].switches
    ends = [sample.wakes_ns for sample in worker.samples if sample.switches == last]
    left = max(0.0, (min(ends) - snapshot.time_ns) / 1e9)
    is_only = len(ends) == len(worker.samples) or left >= snapshot.gap
    return Movement(Sign.SLEEPS, (left,)) if is_only and left <= SOON_SECONDS else None


def _work_beside(worker: Worker, waits: str | None, gap: float) -> Movement | None:
    """Return what a rank whose main thread rests gets done by others: processes, or files."""
    if len(worker.samples) < 2:
        return None
    first, last = worker.samples[0], worker.samples[-1]
    share = (last.started_cpu_seconds - first.started_cpu_seconds) / max(gap, 0.001)
    if share > STARTED_BUSY:
        return Movement(Sign.STARTED, (share,))
    size = last.io_bytes - first.io_bytes
    if waits != "queue" and size > MOVED_BYTES:
        return Movement(Sign.FILES, (size / 1e6,))
    return None


def seen_at(run: Run, number: int) -> str:
    """Return where a process snapshot shows a rank outside of any collective, or nothing.

    A rank that moves is at work there, and may be late or in an endless loop.
    """
    motion = _seen_outside(run, number)
    if motion is None:
        return ""
    if motion.sign is Sign.STARTED:
        return Seen.STARTED_WORK.of(motion.text)
    if motion.wakes is not None:
        return f"at {motion.text}"
    if motion.work:
        return f"in {motion.text}"
    return Seen.AT_WORK.of(motion.text) if motion.condition == "moving" else f"at {motion.text}"


def is_seen_at_work(run: Run, number: int) -> bool:
    """Return whether a process snapshot shows a rank at work that has no name of its own."""
    motion = _seen_outside(run, number)
    if motion is None or motion.condition != "moving" or motion.wakes is not None:
        return False
    return motion.sign is Sign.STARTED or not motion.work


def _seen_outside(run: Run, number: int) -> Motion | None:
    motion = None if run.snapshot is None else read_motions(run.snapshot).get(number)
    if motion is None or not motion.frames or motion.op is not None or motion.unrecorded:
        return None
    return motion
