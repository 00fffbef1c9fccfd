"""A batch that does not fit into memory is split and tried again."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
MEMORY = 4096


class Learner:
    def __init__(self, world: int) -> None:
        self.weights, self.world = torch.zeros(32, requires_grad=True), world

    def compute(self, rows: torch.Tensor) -> None:
        if rows.numel() > MEMORY:
            raise MemoryError(f"{rows.numel()} values")
        (rows @ self.weights).square().mean().backward()

    def step(self, rows: torch.Tensor) -> None:
        try:
            self.compute(rows)
        except MemoryError:
            for half in rows.chunk(2):
                self.step(half)
            return
        dist.all_reduce(self.weights.grad)
        with torch.no_grad():
            self.weights -= 0.001 * self.weights.grad / self.world
        self.weights.grad = None


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    learner = Learner(world)
    for step in range(24):
        length = 160 if faulty and rank == 5 and step == 9 else 64
        learner.step(torch.randn(length, 32))
        if step % 6 == 5:
            rate = torch.tensor([0.001 / (1 + step)])
            dist.broadcast(rate, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
