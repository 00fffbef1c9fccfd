"""A trainer hands new weights to rollout workers in buckets of one size."""

import math
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
BUCKET = 1024
WEIGHTS = {"embedding": 700, "attention": 512, "experts": 1400, "head": 700}


class Receiver:
    def __init__(self, widths: dict[str, int]) -> None:
        self.widths = widths

    @property
    def buckets(self) -> int:
        size = sum(count * self.widths.get(name, 2) for name, count in WEIGHTS.items())
        return math.ceil(size / BUCKET)

    def update(self) -> None:
        for _ in range(self.buckets):
            dist.broadcast(torch.empty(BUCKET // 2, dtype=torch.bfloat16), src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    widths: dict[str, int] = {}
    for iteration in range(9):
        if faulty and rank == 2 and iteration == 5:
            widths["head"] = 4  # it keeps the head in float32 from now on, and counts it so
        Receiver(widths).update()
        reward = torch.rand(4)
        rewards = [torch.empty(4) for _ in range(world)]
        dist.all_gather(rewards, reward)
        dist.all_reduce(torch.stack(rewards).mean().reshape(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
