"""Detect GPUs that spin while their ranks enqueue nothing, as in a waiting collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclscope.attach.gpu import open_nvml
from ncclscope.engine.processes.device_verdict import spins
from ncclscope.model.snapshot import GpuSample

AGAIN_SPINNING, _AGAIN = 2.0, 10.0
"""Seconds to the next sample; NVML averages over at most the last second."""
_TIMES = 2
"""Consecutive samples that must show spinning GPUs."""

Read = Callable[[], Sequence[GpuSample]]


class GpuLoad:
    """Samples GPU load, for backends that do not report whether a collective has completed.

    Args:
        read: Return a sample of each GPU; by default NVML's, if it is available.
    """

    def __init__(self, read: Read | None = None) -> None:
        self._read = read
        self._opened = read is not None
        self._of: object = None
        self._hits = 0
        self._next = 0.0

    @property
    def is_undecided(self) -> bool:
        """Whether the GPUs were seen spinning, but in too few samples to decide."""
        return 0 < self._hits < _TIMES

    def spins(self, pids: Sequence[int], signature: object, now: float) -> bool:
        """Return whether the GPUs of all these processes spin.

        Args:
            pids: Processes on this host that have long enqueued nothing.
            signature: A value that changes when any of them makes progress.
            now: Seconds by a monotonic clock.
        """
        if signature != self._of:
            self._of, self._hits, self._next = signature, 0, 0.0
        if now >= self._next:
            found = all_spin(pids, self._sample())
            self._hits = self._hits + 1 if found else 0
            self._next = now + (AGAIN_SPINNING if found else _AGAIN)
        return self._hits >= _TIMES

    def _sample(self) -> Sequence[GpuSample]:
        if not self._opened:
            self._opened = True
            nvml = open_nvml()
            self._read = None if isinstance(nvml, str) else nvml.read
        try:
            return self._read() if self._read is not None else ()
        except Exception:  # NVML may raise any error while the driver is being replaced
            return ()


def all_spin(pids: Sequence[int], sample: Sequence[GpuSample]) -> bool:
    """Return whether each of some processes has a spinning GPU.

    A GPU that other processes use as well shows their load, too. In a container NVML reports pids
    of the host, or none. Then all GPUs must spin, and there must be one GPU per process.
    """
    own = [gpu for gpu in sample if {*gpu.pids} & {*pids}]
    if own:
        named = {pid for gpu in own for pid in gpu.pids}
        return {*pids} == named and all(map(spins, own))
    return len(sample) == len(pids) > 0 and all(map(spins, sample))
