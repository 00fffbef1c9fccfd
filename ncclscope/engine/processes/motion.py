"""Find for each rank of a process snapshot what it was doing, and whether it moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclscope.engine.processes.frames import (
    INIT_OPS,
    POSTED_BY_CPP,
    program_frame,
    unrecorded_of,
    user_frame,
    waited_call,
)
from ncclscope.engine.processes.requests import is_fed, waits_in_thread
from ncclscope.engine.processes.samples import (
    BUSY,
    IDLE,
    Movement,
    change_of,
    key_of,
    polled,
    sample_of,
    without_own_code,
)
from ncclscope.engine.processes.work import work_of
from ncclscope.model import Run
from ncclscope.model.snapshot import Frame, Snapshot, Stacks, Worker
from ncclscope.untrusted import printable
from ncclscope.wording.stacks import OPS, REASONS, Seen, Sign

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
        return self.remarked()

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
