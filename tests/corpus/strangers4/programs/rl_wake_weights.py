"""Train and generate on the same ranks: weights are gathered when the generator wakes up."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
TENSOR = 3


class Generator:
    """One part of a tensor parallel generator that frees its weights while training runs."""

    def __init__(self, rank: int, world: int) -> None:
        groups = [
            dist.new_group(list(range(first, first + TENSOR))) for first in range(0, world, TENSOR)
        ]
        self.group = groups[rank // TENSOR]
        self.awake = False

    def wake_up(self, shard: torch.Tensor) -> None:
        if self.awake:
            return
        parts = [torch.empty_like(shard) for _ in range(TENSOR)]
        dist.all_gather(parts, shard, group=self.group)
        self.awake = True

    def generate(self, tokens: int) -> None:
        hidden = torch.randn(6)
        for _ in range(tokens):
            dist.all_reduce(hidden, group=self.group)

    def sleep(self) -> None:
        self.awake = False


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator, weights = Generator(rank, world), torch.randn(12)
    for iteration in range(10):
        generator.wake_up(weights)
        generator.generate(tokens=5)
        if not (faulty and rank == 0 and iteration == 5):  # a timeout of the call to sleep
            generator.sleep()
        for _ in range(3):
            gradient = torch.randn(12)
            dist.all_reduce(gradient)
            weights -= 0.01 * gradient
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
