"""Time and memory that reading one file may take, by its size on disk.

A few hundred bytes can stand for gigabytes: packed, by reference or as empty containers. What a
format allows is hard to tell in advance, so that readers ask as they go how much has been spent.
"""

from __future__ import annotations

import resource
import time

from ncclscope.errors import DamagedFileError

__all__ = ["Budget"]

_PAGE = resource.getpagesize()
_MEMORY_PER_BYTE = 8
_MEMORY_FREE = 150 << 20
"""Of the 200 MB that a file may take whatever its size; the rest is for comparing it."""
_SECONDS_PER_BYTE = 1e-7
_SECONDS_FREE = 4.0
"""Of 5 s, likewise."""


class Budget:
    """Measures what reading a file has taken since this was made.

    Time is that of this thread on a processor: a slow disk or a busy machine costs no data.

    Args:
        name: What to call the file in an error.
        size: Its bytes on disk.

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
        """Stop the reader where it has taken too much.

        Args:
            read: What has been read so far, for the error.

        Raises:
            DamagedFileError: The budget is spent.
        """
        if (
            time.thread_time() - self._began > self.seconds
            or _resident() - self._held > self.memory
        ):
            raise self.too_large(read)

    def check_estimate(self, memory: int) -> None:
        """Stop the reader before it builds something that takes this much memory, in bytes.

        Raises:
            DamagedFileError: There is less left.
        """
        if memory > self.memory:
            raise self.too_large("nothing, it would take too much memory")

    def too_large(self, read: str) -> DamagedFileError:
        """Return the error for a file that goes beyond what is reckoned with."""
        return DamagedFileError(
            f"{self._name} is too large, read so far: {read}; its rank is left out",
            "a rank of which only the beginning is read would seem to be behind the others",
        )


def _resident() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * _PAGE
