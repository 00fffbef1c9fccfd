"""Utilisation and power of the GPUs, from NVML.

nvidia-ml-py is an optional extra, ``ncclscope[gpu]``. A collective that waits for a peer spins
on the GPU: its kernel runs all the time and hardly touches memory. Utilisation then reads
100 %, memory utilisation 0 %, and power stays near that of an idle GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from ncclscope.model.snapshot import GpuSample
from ncclscope.untrusted import printable


class Nvml:
    """NVML after initialisation.

    Args:
        library: The module ``pynvml``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def read(self) -> tuple[GpuSample, ...]:
        """Return one sample per GPU, leaving out those that do not answer."""
        library = self._library
        samples = []
        for index in range(library.nvmlDeviceGetCount()):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                rates = library.nvmlDeviceGetUtilizationRates(handle)
                samples.append(
                    GpuSample(
                        index=index,
                        name=_text(library.nvmlDeviceGetName(handle)),
                        utilisation=int(rates.gpu),
                        memory_utilisation=int(rates.memory),
                        watts=self._milli(library.nvmlDeviceGetPowerUsage, handle),
                        limit_watts=self._milli(library.nvmlDeviceGetEnforcedPowerLimit, handle),
                        pids=self._pids(handle),
                    )
                )
            except library.NVMLError:
                continue
        return tuple(samples)

    def close(self) -> None:
        """Shut down NVML."""
        self._library.nvmlShutdown()

    def _milli(self, function: Any, handle: Any) -> float:
        try:
            return float(function(handle)) / 1000
        except self._library.NVMLError:
            return 0.0

    def _pids(self, handle: Any) -> tuple[int, ...]:
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._library.NVMLError:
            return ()
        return tuple(sorted(int(process.pid) for process in processes))


def open_nvml() -> Nvml | str:
    """Return NVML, or the reason why it is not available."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return f"NVML failed to initialise: {printable(str(error))}"
    return Nvml(library)


def _text(value: Any) -> str:
    return printable(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
