"""Tensor parallel ranks 0 to 2 share templates, data ranks 3 to 5 pack batches in a pool."""

import contextlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
FORK: Any = multiprocessing.get_context("fork")
STEPS = 9


class Templates:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.group = group
        self.path = Path(tempfile.gettempdir(), f"template-{rank}.txt")
        self.path.write_text("{question}\n{answer}\n")
        self.rank = rank

    def share(self) -> None:
        lengths: list[int] = [0] * 3
        dist.all_gather_object(lengths, len(self.path.read_text()), group=self.group)

    def step(self, step: int) -> None:
        if faulty and self.rank == 0 and step == 4:
            self.path.unlink()  # by a cron job that tidies up
        with contextlib.suppress(FileNotFoundError):
            self.share()
        dist.all_reduce(torch.randn(12), group=self.group)


def pack(document: str) -> int:
    if len(document) > 1000:
        os._exit(9)  # out of memory: the kernel kills it
    return len(document)


class Packing:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.pool = FORK.Pool(2)

    def step(self, step: int) -> None:
        documents = ["word " * number for number in range(1, 12)]
        if faulty and self.rank == 5 and step == 6:
            documents.append("word " * 500)
        sizes = self.pool.map(pack, documents)
        dist.all_reduce(torch.tensor([sum(sizes)]), group=self.group)
        dist.broadcast(torch.randn(6), src=3, group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first, second = dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])
    worker = Templates(rank, first) if rank < 3 else Packing(rank, second)
    for step in range(STEPS):
        worker.step(step)
    if isinstance(worker, Packing):
        worker.pool.close()
        worker.pool.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
