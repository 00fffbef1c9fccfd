"""Limit the time and memory for reading one file, by its size on disk.

A few hundred bytes can expand to gigabytes: by compression, by references or as empty containers.
The cost of a file is hard to predict, so readers check what they have spent as they go.
"""

from __future__ import annotations

import resource
import time

from ncclscope.errors import DamagedFileError

_PAGE = resource.getpagesize()
_MEMORY_PER_BYTE = 8
_MEMORY_FREE = 150 << 20
"""Bytes granted to a file of any size: 150 of 200 MB, as comparing it needs the rest."""
_SECONDS_PER_BYTE = 1e-7
_SECONDS_FREE = 4.0
"""Seconds granted to a file of any size: 4 of 5 s, as comparing it needs the rest."""


class Budget:
    """Measures the time and memory that reading a file has taken since construction.

    Time is this thread's CPU time, so that a slow disk or a busy machine loses no data.

    Args:
        name: Name of the file in an error.
        size: Size on disk in bytes.

    Attributes:
        memory: Bytes that reading may take.
        seconds: Seconds that reading may take.
    """

    def __init__(self, name: str, size: int) -> None:
        self.memory = _MEMORY_PER_BYTE * size + _MEMORY_FREE
        self.seconds = _SECONDS_PER_BYTE * size + _SECONDS_FREE
        self._name = name
        self._held = _resident()
        self._began = time.thread_time()

    def check(self, read: str = "nothing that can be used") -> None:
        """Raise an error if reading has taken too much time or memory.

        Args:
            read: What has been read so far, for the error message.

        Raises:
            DamagedFileError: The budget is spent.
        """
        if (
            time.thread_time() - self._began > self.seconds
            or _resident() - self._held > self.memory
        ):
            raise self.too_large(read)

    def check_estimate(self, memory: int) -> None:
        """Raise an error before the reader builds something of `memory` bytes.

        Raises:
            DamagedFileError: That exceeds the budget.
        """
        if memory > self.memory:
            raise self.too_large("nothing, since it would take too much memory")

    def too_large(self, read: str) -> DamagedFileError:
        """Return the error for a file that exceeds its budget."""
        return DamagedFileError(
            f"{self._name} is too large, read so far: {read}; its rank is left out",
            "with only the beginning read, its rank would seem to lag behind the others",
        )


def _resident() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * _PAGE
