"""Whether the GPUs of ranks that post nothing run all the same, as in a collective that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclscope.analysis.processes.device_verdict import spins
from ncclscope.attach.gpu import open_nvml
from ncclscope.model.snapshot import GpuSample

__all__ = ["AGAIN_SPINNING", "GpuLoad", "all_spin"]

AGAIN_SPINNING, _AGAIN = 2.0, 10.0
"""Seconds to the next sample: NVML's figures are those of the last second at most."""
_TIMES = 2
"""Samples in a row that must say so."""

Read = Callable[[], Sequence[GpuSample]]


class GpuLoad:
    """Looks at the load of GPUs, where nothing else tells whether a collective has ended.

    Args:
        read: Returns a sample of each GPU; NVML's when absent, if there is NVML.
    """

    def __init__(self, read: Read | None = None) -> None:
        self._read = read
        self._opened = read is not None
        self._of: object = None
        self._hits = 0
        self._next = 0.0

    @property
    def is_undecided(self) -> bool:
        """Whether the GPUs were seen to spin, and not yet often enough."""
        return 0 < self._hits < _TIMES

    def spins(self, pids: Sequence[int], signature: object, now: float) -> bool:
        """Says whether the GPUs of all these processes spin.

        Args:
            pids: Of processes on this host that have posted nothing for long.
            signature: What changes when one of them does anything.
            now: Seconds, by any clock.
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
        except Exception:  # a driver that is being exchanged: NVML may say anything then
            return ()


def all_spin(pids: Sequence[int], sample: Sequence[GpuSample]) -> bool:
    """Whether each of some processes has a GPU that spins.

    In a container NVML names the processes of the host, or none; then all GPUs must spin, and be
    as many as the processes.
    """
    own = [gpu for gpu in sample if {*gpu.pids} & {*pids}]
    if own:
        named = {pid for gpu in own for pid in gpu.pids}
        return {*pids} <= named and all(map(spins, own))
    return len(sample) == len(pids) > 0 and all(map(spins, sample))
