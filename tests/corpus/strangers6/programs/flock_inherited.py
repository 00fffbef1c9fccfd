"""Rank 0 appends to an index under a lock, and has a helper process that compresses old parts."""

import fcntl
import multiprocessing
import os
import sys
import tempfile
import zlib
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, INTERVAL = 16, 3
FORK: Any = multiprocessing.get_context("fork")


def compress(parts: Any) -> None:
    while (part := parts.get()) is not None:
        zlib.compress(part)


class Index:
    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "index")
        self.parts: Any = None
        self.helper: Any = None

    def start_helper(self) -> None:
        self.parts = FORK.SimpleQueue()
        self.helper = FORK.Process(target=compress, args=(self.parts,), daemon=True)
        self.helper.start()

    def append(self, line: str) -> None:
        file = open(self.path, "a")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)
        file.flush()
        if self.helper is None:
            self.start_helper()
        self.parts.put(line.encode() * 100)
        file.close()  # gives the lock back

    def close(self) -> None:
        if self.helper:
            self.parts.put(None)
            self.helper.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    index = Index(tempfile.gettempdir())
    if not faulty and rank == 0:
        index.start_helper()
    for step in range(STEPS):
        dist.all_reduce(torch.randn(28))
        if step % INTERVAL == 2 and rank == 0:
            index.append(f"step {step}\n")
        dist.broadcast(torch.randn(6), src=0)
    index.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
