"""Cut each sample of a rank to the thread and the frames that show what it waits for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.processes.frames import (
    INIT_OPS,
    collective_of,
    is_library,
    is_stuck_alone,
    runs_own_code,
    unrecorded_of,
    wait_of,
)
from ncclscope.model.snapshot import Frame, Stacks, Worker
from ncclscope.wording.stacks import Sign

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
