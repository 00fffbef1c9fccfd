"""The way it was done first: shared memory, a lock file, a wait for the GPU in every step.

A specimen, to be compared with and to be caught; nothing here uses it. What it costs:

- the worker waits for the device twice in each step, whether or not anybody wants the result;
- it writes all of the batch under an exclusive lock, for which it waits while a reader copies;
- the scheduler waits for the same lock for each request that ends, in the loop that feeds all
  workers; with expert parallelism one late worker stops all others at the next collective;
- slots are read as they are: rows of a block's earlier content count as routing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ncclscope_patches.routed_experts.shape import Ids, RoutingShape

__all__ = ["SharedMemorySpecimen"]


class SharedMemorySpecimen:
    """Routing by physical KV slot in a segment that worker and scheduler map.

    Args:
        shape: The model's routing.
        slots: KV slots of the engine.
        path: The segment, in a file system that is memory; both sides say the same.
        create: Whether this side makes it, and removes it in the end.

    Attributes:
        device_waits: How often a device was waited for.
        locks: How often the lock was taken.
    """

    def __init__(self, shape: RoutingShape, slots: int, path: Path, *, create: bool) -> None:
        self.shape = shape
        self.device_waits = self.locks = 0
        self._path = path
        self._lock_file = path.with_suffix(".lock")
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
            ids: All of the batch, ``(layers, tokens, top_k)``.
            slot_mapping: KV slot of each token, ``(tokens,)``.
        """
        where = slot_mapping.cpu().numpy()
        rows = ids.permute(1, 0, 2).cpu().numpy()
        self.device_waits += 2
        with self._locked():
            self._ids[where] = rows.astype(self.shape.dtype)

    def read(self, slots: Ids) -> Ids:
        """Return what is in some slots, for a request that ended, on the scheduler."""
        with self._locked():
            return np.array(self._ids[slots])

    def close(self) -> None:
        """Give the segment back."""
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
