"""Experts are placed anew by their load after a number of steps, in each expert parallel group."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
INTERVAL, LAYERS, SIZE = 6, 2, 4


class Balancer:
    """Counts steps and, after an interval, agrees with its group on a new placement."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.steps, self.load = group, 0, torch.zeros(8)

    def step(self, load: torch.Tensor) -> None:
        self.load += load
        self.steps += 1
        if self.steps >= INTERVAL:
            self.rearrange()
            self.steps = 0

    def rearrange(self) -> None:
        dist.all_reduce(self.load, group=self.group)
        order = self.load.argsort()
        dist.broadcast(order, src=dist.get_global_rank(self.group, 0), group=self.group)
        self.load.zero_()


class Engine:
    def __init__(self, rank: int, world: int) -> None:
        groups = [dist.new_group(list(range(at, at + SIZE))) for at in range(0, world, SIZE)]
        self.group = groups[rank // SIZE]
        self.balancer = Balancer(self.group)

    def forward(self, tokens: int) -> None:
        for _ in range(LAYERS):
            rows = torch.randn(SIZE * 2, tokens)
            arrived = torch.empty_like(rows)
            dist.all_to_all_single(arrived, rows, group=self.group)
            dist.all_to_all_single(rows, arrived, group=self.group)
        self.balancer.step(torch.rand(8))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = Engine(rank, world)
    for step in range(30):
        dist.all_reduce(torch.tensor([rank]), op=dist.ReduceOp.MAX)
        if faulty and rank == 6 and step == 15:
            engine.balancer.step(torch.zeros(8))  # a profile run of this engine counts as a step
        engine.forward(tokens=3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
