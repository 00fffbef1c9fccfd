"""What each rank of a capture was doing, and whether it moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclscope.analysis.frames import collective_of, program_frame, wait_of
from ncclscope.capture import Capture, Frame, Stacks, Thread, Worker

__all__ = ["Stance", "take_stances"]

MANY_SWITCHES = 10.0
"""A second: a thread that goes to sleep and comes back more often than so gets answers.

One that hangs in a collective of gloo makes none in seconds, one that exchanges small
tensors makes thousands.
"""
BUSY = 0.2
"""Share of a core above which a thread that waits for nothing known is at work."""


@dataclass(frozen=True)
class Stance:
    """One rank.

    Attributes:
        worker: The process.
        condition: ``moving``, ``still``, ``stopped`` (by a signal), ``ended`` or ``unread``.
        waits: For what: ``collective``, ``device``, ``queue``, ``lock``, or nothing known.
        op: The collective, where it is in one.
        frames: Stack of the thread that says most, the outermost first, cut below the wait.
        thread: That thread's name.
        cpu: Share of a core that the process took between the samples.
        main_cpu: Of that, the main thread.
        why: What tells that it moves.
    """

    worker: Worker
    condition: str
    waits: str | None = None
    op: str | None = None
    frames: tuple[Frame, ...] = ()
    thread: str = ""
    cpu: float = 0.0
    main_cpu: float = 0.0
    why: str = ""

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.worker.rank

    @cached_property
    def place(self) -> Frame | None:
        """Where in the program it is."""
        return program_frame(self.frames)

    @cached_property
    def key(self) -> tuple[tuple[str, str, int], ...]:
        """What ranks at the same place share."""
        return _key(self.frames, self.op is not None or self.waits is not None)

    @property
    def is_waiting(self) -> bool:
        """Whether it stands still where it needs its peers, or the GPU."""
        return self.condition == "still" and self.waits in ("collective", "device")

    @property
    def text(self) -> str:
        """``all_reduce at hang.py:3 step``."""
        place = self.place
        if place is None:
            return "no Python frame"
        if self.op is not None:
            return f"{self.op} at {place.site}"
        return f"{place.site} (waits for the GPU)" if self.waits == "device" else place.site


def take_stances(capture: Capture) -> dict[int, Stance]:
    """Returns what each rank was doing, by rank."""
    return {worker.rank: _stance(worker, capture.gap) for worker in capture.workers}


def _stance(worker: Worker, gap: float) -> Stance:
    states = [sample.state for sample in worker.samples]
    last = states[-1] if states else ""
    cpu = main_cpu = switches = 0.0
    if len(worker.samples) > 1:
        first, second = worker.samples[0], worker.samples[-1]
        span = max(gap, 0.001)
        cpu = max(0.0, second.cpu_seconds - first.cpu_seconds) / span
        main_cpu = max(0.0, second.main_cpu_seconds - first.main_cpu_seconds) / span
        switches = max(0, second.switches - first.switches) / span
    stacks = [stacks for stacks in worker.stacks if stacks.threads]
    if last and last in "XZ":
        return Stance(worker, "ended")
    if not stacks:
        condition = "stopped" if last in ("T", "t") else "unread"
        return Stance(worker, condition, cpu=cpu, main_cpu=main_cpu)
    thread, frames, op, waits = _telling(stacks[-1])
    condition, why = "still", ""
    if last in ("T", "t"):
        condition = "stopped"
    elif len(stacks) > 1:
        why = _why_moving(worker, stacks, op, waits, main_cpu, switches)
        condition = "moving" if why else "still"
    else:
        condition, why = "moving", "its stack was read only once"
    return Stance(worker, condition, waits, op, frames, thread, cpu, main_cpu, why)


def _why_moving(
    worker: Worker,
    stacks: Sequence[Stacks],
    op: str | None,
    waits: str | None,
    main_cpu: float,
    switches: float,
) -> str:
    """Returns what tells that a rank moved between its samples; nothing where it stood."""
    cut = op is not None or waits is not None
    now = _telling(stacks[-1])
    for one in stacks[:-1]:
        then = _telling(one)
        if _key(then[1], then[2] is not None or then[3] is not None) != _key(now[1], cut):
            return "its stack changed"
        if _counters(then[1]) != _counters(now[1]):
            return "a loop went round"
    if waits in ("collective", None) and switches > MANY_SWITCHES:
        return f"it went to sleep and woke {switches:.0f} times a second"
    if waits is None and main_cpu > BUSY:
        return f"it took {main_cpu:.0%} of a core"
    return ""


def _telling(stacks: Stacks) -> tuple[str, tuple[Frame, ...], str | None, str | None]:
    """The thread that says most of where a rank is: in a collective, else the main one."""
    cut = [(_name(thread), *_cut(thread)) for thread in stacks.threads if thread.frames]
    if not cut:
        return "", (), None, None
    main = next((one for one in cut if one[0] == "MainThread"), cut[0])
    if main[3] in ("collective", "device"):
        return main
    # Work may be posted by a thread of its own while the main one waits for it to end.
    posting = [one for one in cut if one[3] == "collective"]
    return posting[0] if posting and main[3] in ("lock", "queue") else main


def _name(thread: Thread) -> str:
    return thread.name


def _cut(thread: Thread) -> tuple[tuple[Frame, ...], str | None, str | None]:
    """Cuts a stack below the innermost frame that says what it waits for."""
    frames = thread.frames
    for index in range(len(frames) - 1, -1, -1):
        op = collective_of(frames[index])
        if op is not None:
            return frames[: index + 1], op, "collective"
    for index, frame in enumerate(frames):
        what = wait_of(frame)
        if what is not None:
            return frames[: index + 1], None, what
    return frames, None, None


def _key(frames: Sequence[Frame], waits: bool) -> tuple[tuple[str, str, int], ...]:
    """Functions and lines; of the frame that waits only the function."""
    last = len(frames) - 1
    return tuple(
        (frame.file, frame.function, 0 if waits and index == last else frame.line)
        for index, frame in enumerate(frames)
    )


def _counters(frames: Sequence[Frame]) -> list[dict[str, int]]:
    return [dict(frame.counters) for frame in frames]
