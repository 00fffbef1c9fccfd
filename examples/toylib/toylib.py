"""A small communication library: ranks of one host exchange tensors through files.

With ``log=True`` it writes one line for each call, as many libraries do.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch


class Group:
    """Ranks that communicate.

    Args:
        folder: Directory that all ranks share.
        rank: Own rank.
        size: Number of ranks.
        log: Whether to write ``rank-N.toylog`` there.
    """

    def __init__(self, folder: Path, rank: int, size: int, *, log: bool = False) -> None:
        self.name = folder.name
        self.folder = folder
        self.rank = rank
        self.size = size
        self.calls = 0
        self.log = (folder / f"rank-{rank}.toylog").open("w", buffering=1) if log else None

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' tensors of one shape; wait until all have come."""
        return self._exchange("all_reduce", tensor).sum(0)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the ranks' tensors of one shape, ``[size, ...]``; wait until all have come."""
        return self._exchange("all_gather", tensor)

    def _exchange(self, op: str, tensor: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.log is not None:
            print(op, *tensor.shape, file=self.log)
        own = self.folder / f"{op}-{self.calls}-{self.rank}"
        torch.save(tensor, own.with_suffix(".part"))
        own.with_suffix(".part").rename(own)
        parts = [self.folder / f"{op}-{self.calls}-{rank}" for rank in range(self.size)]
        while not all(part.exists() for part in parts):
            time.sleep(0.01)
        return torch.stack([torch.load(part) for part in parts])
