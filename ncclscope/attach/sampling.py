"""Sample processes repeatedly until it is clear whether they make progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclscope.attach import environment as machine
from ncclscope.attach.gpu import Nvml, open_nvml
from ncclscope.attach.proc_sample import read_sample, started_seconds
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.model.snapshot import GpuSample, ProcessSample, Source, Stacks, Worker
from ncclscope.wording.names import plural, ranks_text

_BETWEEN = 4
"""Samples between the first and the last."""
_INTERVAL = 1.0
"""Seconds between samples after the gap is over."""


@dataclass(frozen=True)
class Sample:
    """All processes at one moment.

    Attributes:
        stacks: Stacks by pid.
        processes: State and CPU time from /proc, by pid.
        gpus: GPU utilisation and power from NVML.
    """

    stacks: Mapping[int, Stacks]
    processes: Mapping[int, ProcessSample]
    gpus: tuple[GpuSample, ...]


class ProcessReader:
    """Reads stacks, /proc and NVML of a fixed set of processes.

    Args:
        pids: The processes to sample.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        program = find_py_spy()
        self._py_spy = PySpy(program) if program else None
        self._nvml: Nvml | str = open_nvml()

    def read(self) -> Sample:
        """Take one sample of every process and GPU."""
        started = started_seconds(self._pids)
        processes = {
            pid: replace(read_sample(pid), started_cpu_seconds=started[pid]) for pid in self._pids
        }
        gpus = () if isinstance(self._nvml, str) else self._nvml.read()
        return Sample(self._stacks(), processes, gpus)

    def _stacks(self) -> dict[int, Stacks]:
        if self._py_spy is None:
            return {pid: Stacks(error="py-spy is not installed") for pid in self._pids}
        return self._py_spy.read(self._pids)

    def close(self) -> None:
        """Shut down NVML."""
        if not isinstance(self._nvml, str):
            self._nvml.close()

    def stack_source(self, workers: Sequence[Worker]) -> Source:
        """Return the source ``stacks``: how many processes were read, and why others were not."""
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
        """Return the source ``gpu``: whether NVML answered."""
        if isinstance(self._nvml, str):
            how = (
                "pip install nvidia-ml-py"
                if "installed" in self._nvml
                else "install the NVIDIA driver on this machine, and its library in this container"
            )
            return Source("gpu", False, self._nvml, how)
        return Source("gpu", True, "read twice")


def take_samples(
    reader: ProcessReader,
    gap: float,
    patience: float,
    is_open: Callable[[Sequence[Sample], float], bool],
) -> tuple[list[Sample], float]:
    """Sample at the start and the end of the gap, and a few times in between.

    A process that shows the same stack twice may have completed a loop in between. More
    samples make that unlikely, and each one costs hundredths of a second.

    Args:
        reader: Takes the samples.
        gap: Minimum seconds between the first and the last sample.
        patience: Keep sampling for up to this many seconds while `is_open` is true.
        is_open: Return whether more samples could change the verdict, given the samples so
            far and the seconds that they span.

    Returns:
        At least two samples, and the seconds between the first and the last.
    """
    samples, started = [reader.read()], time.monotonic()
    for part in range(1, _BETWEEN + 1):
        # At irregular intervals: a loop in the sampled process may have a fixed period.
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
    """Return the first reason why a stack of these processes could not be read."""
    return next(
        (stacks.error for worker in workers for stacks in worker.stacks if stacks.error),
        "no Python thread",
    )
