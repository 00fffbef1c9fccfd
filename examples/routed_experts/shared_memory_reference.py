"""The original design, a buggy reference: shared memory, a lock file, a GPU wait in every step.

It is for comparison and tests; no other module uses it. Its costs and bugs:

- the worker waits for the device twice per step, even if no request opted in;
- it writes the whole batch under an exclusive lock, and waits for it while a reader copies;
- the scheduler waits for the same lock for each ended request, in the loop that feeds all
  workers; with expert parallelism one late worker blocks all others at the next collective;
- slots are read unchecked: rows of a block's earlier content count as routing.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ncclscope_patches.routed_experts.shape import Ids, RoutingShape

__all__ = ["SharedMemoryReference", "lock_held"]


@contextmanager
def lock_held(path: Path, seconds: float) -> Iterator[None]:
    """Hold a segment's lock, as a reader does that has lost its processor.

    Args:
        path: File of the segment.
        seconds: Time after which the lock is released; 0 to leave it alone.
    """
    with _lock_file(path).open("w") as file:
        if seconds:
            fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(seconds, fcntl.flock, (file, fcntl.LOCK_UN))
        release.start()
        try:
            yield
        finally:
            release.cancel()
            release.join()


def _lock_file(path: Path) -> Path:
    return path.with_suffix(".lock")


class SharedMemoryReference:
    """Routing by physical KV slot in a segment that worker and scheduler map.

    Args:
        shape: Shape of the model's routing.
        slots: Number of KV slots of the engine.
        path: File of the segment, in a memory file system; equal on both sides.
        create: Whether this side creates the segment, and removes it at the end.

    Attributes:
        device_waits: Number of waits for the device.
        locks: Number of times the lock was taken.
    """

    def __init__(self, shape: RoutingShape, slots: int, path: Path, *, create: bool) -> None:
        self.shape = shape
        self.device_waits = self.locks = 0
        self._path = path
        self._lock_file = _lock_file(path)
        self._create = create
        self._ids: Ids = np.memmap(
            path,
            shape.dtype,
            mode="w+" if create else "r+",
            shape=(slots, shape.layers, shape.top_k),
        )

    def save(self, ids: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store a step, on the worker.

        Args:
            ids: Expert ids of the whole batch, ``(layers, tokens, top_k)``.
            slot_mapping: KV slot of each token, ``(tokens,)``.
        """
        where = slot_mapping.cpu().numpy()
        rows = ids.permute(1, 0, 2).cpu().numpy()
        self.device_waits += 2
        with self._locked():
            self._ids[where] = rows.astype(self.shape.dtype)

    def read(self, slots: Ids) -> Ids:
        """Return the contents of some slots, for an ended request, on the scheduler."""
        with self._locked():
            return np.array(self._ids[slots])

    def close(self) -> None:
        """Close the segment; the side that created it removes it."""
        del self._ids
        if self._create:
            self._path.unlink()
            self._lock_file.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock_file.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.locks += 1
            yield
