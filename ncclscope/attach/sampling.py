"""Reads everything about some processes again and again, until it is clear whether they move."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ncclscope.analysis.wording import plural, ranks_text
from ncclscope.attach import environment as machine
from ncclscope.attach.gpu import Nvml, open_nvml
from ncclscope.attach.proc_sample import read_sample
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.model.snapshot import GpuSample, ProcessSample, Source, Stacks, Worker

__all__ = ["Reader", "Sample", "first_error", "take_samples"]

_BETWEEN = 4
"""Samples between the first and the last."""
_INTERVAL = 1.0
"""Seconds between samples where it takes longer than the gap."""


@dataclass(frozen=True)
class Sample:
    """All processes at one moment.

    Attributes:
        stacks: By pid.
        processes: What /proc says, by pid.
        gpus: As NVML knows them.
    """

    stacks: Mapping[int, Stacks]
    processes: Mapping[int, ProcessSample]
    gpus: tuple[GpuSample, ...]


class Reader:
    """Reads everything about some processes that is read more than once.

    Args:
        pids: The processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        program = find_py_spy()
        self._py_spy = PySpy(program) if program else None
        self._nvml: Nvml | str = open_nvml()

    def read(self) -> Sample:
        """Reads once."""
        processes = {pid: read_sample(pid) for pid in self._pids}
        gpus = () if isinstance(self._nvml, str) else self._nvml.read()
        return Sample(self._stacks(), processes, gpus)

    def _stacks(self) -> dict[int, Stacks]:
        if self._py_spy is None:
            return {pid: Stacks(error="py-spy is not installed") for pid in self._pids}
        return self._py_spy.read(self._pids)

    def close(self) -> None:
        """Ends the use of NVML."""
        if not isinstance(self._nvml, str):
            self._nvml.close()

    def stack_source(self, workers: Sequence[Worker]) -> Source:
        """Says of how many processes stacks were read."""
        read = [w for w in workers if w.stacks[0].threads and w.stacks[-1].threads]
        samples = max((len(worker.stacks) for worker in workers), default=0)
        state = f"{len(read)} of {plural(len(workers), 'rank')} read, {samples} times"
        if len(read) == len(workers):
            return Source("stacks", True, state)
        rest = [worker for worker in workers if worker not in read]
        state += f"; {ranks_text(worker.rank for worker in rest)}: {first_error(rest)}"
        help = machine.permission_help([worker.pid for worker in rest])
        if self._py_spy is None:
            help = "pip install py-spy"
        return Source("stacks", bool(read), state, help)

    def gpu_source(self) -> Source:
        """Says whether NVML answered."""
        if isinstance(self._nvml, str):
            how = (
                "pip install 'ncclscope[gpu]'"
                if "installed" in self._nvml
                else ("needs NVIDIA's driver on this machine, and its library in this container")
            )
            return Source("gpu", False, self._nvml, how)
        return Source("gpu", True, "read twice")


def take_samples(
    reader: Reader,
    gap: float,
    patience: float,
    is_open: Callable[[Sequence[Sample], float], bool],
) -> tuple[list[Sample], float]:
    """Reads at the beginning, some times in between, and at the end.

    What is at the same place twice may have gone round in between. The more often it is sampled,
    the less likely that is, and a sample costs hundredths of a second.

    Args:
        reader: Reads once.
        gap: Seconds between the first and the last sample, at least.
        patience: Seconds up to which to go on where a longer look would decide.
        is_open: Whether it would, by the samples so far and the seconds that they span.

    Returns:
        The samples, two at least, and the seconds between the first and the last.
    """
    samples, started = [reader.read()], time.monotonic()
    for part in range(1, _BETWEEN + 1):
        # Never quite regular, since what is sampled may be.
        due = started + gap * (part - 0.35 * (part % 2)) / (_BETWEEN + 1)
        if time.monotonic() < due < started + gap:
            time.sleep(due - time.monotonic())
            samples.append(reader.read())
    time.sleep(max(0.0, started + gap - time.monotonic()))
    span = time.monotonic() - started
    samples.append(reader.read())
    while span < patience and is_open(samples, span):
        due = min(span + _INTERVAL, patience)
        time.sleep(max(0.0, started + due - time.monotonic()))
        span = time.monotonic() - started
        samples.append(reader.read())
    return samples, span


def first_error(workers: Sequence[Worker]) -> str:
    """Returns why the stacks of some processes could not be read."""
    return next(
        (stacks.error for worker in workers for stacks in worker.stacks if stacks.error),
        "no Python thread",
    )
