"""Checkpoints are collected by a thread with a group of its own, while training goes on."""

import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Saver:
    def __init__(self, group: dist.ProcessGroup, quota: int) -> None:
        self.group, self.quota, self.used = group, quota, 0
        self.thread: threading.Thread | None = None

    def _save(self, weights: torch.Tensor) -> None:
        self.used += weights.numel()
        if self.used > self.quota:
            self.used = 0
            raise OSError("quota exceeded")
        parts = [torch.empty_like(weights) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, weights, group=self.group)
        dist.broadcast(torch.tensor([self.used]), src=0, group=self.group)

    def save(self, weights: torch.Tensor) -> None:
        self.finish()
        self.thread = threading.Thread(target=self._save, args=(weights.clone(),))
        self.thread.start()

    def finish(self) -> None:
        if self.thread:
            self.thread.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saver = Saver(dist.new_group(list(range(world))), 100 if faulty and rank == 2 else 1000)
    weights = torch.zeros(32)
    for step in range(20):
        gradient = torch.randn(32)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
        if step % 4 == 3:
            saver.save(weights)
    saver.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
