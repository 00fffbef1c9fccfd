"""Checkpoints are planned and written by a thread while training goes on."""

import os
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Saver:
    """Writes one checkpoint at a time, on a group of its own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.group = dist.new_group()
        self.pool = ThreadPoolExecutor(1)
        self.pending: Future[None] | None = None

    def save(self, step: int, weights: torch.Tensor, *, may_skip: bool) -> None:
        if self.pending is not None:
            if may_skip and not self.pending.done():
                print(f"the last checkpoint is not written yet, none for step {step}")
                return
            self.pending.result()
        self.pending = self.pool.submit(self._write, step, weights.clone())

    def _write(self, step: int, weights: torch.Tensor) -> None:
        rank = dist.get_rank()
        plans = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object({"rank": rank, "rows": len(weights)}, plans, group=self.group)
        if faulty and rank == 2 and step == 10:
            time.sleep(1.5)  # the disk is slow
        torch.save(weights, os.path.join(self.folder, f"{step}.{rank}.pt"))
        dist.barrier(group=self.group)

    def close(self) -> None:
        if self.pending is not None:
            self.pending.result()


def main() -> None:
    dist.init_process_group("gloo")
    saver = Saver(tempfile.mkdtemp())
    weights = torch.zeros(64)
    for step in range(1, 31):
        gradient = torch.randn(64)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        if step % 5 == 0:
            newer = dist.get_rank() == 2 and step == 15  # of the library, on one node
            saver.save(step, weights, may_skip=faulty and newer)
    saver.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
