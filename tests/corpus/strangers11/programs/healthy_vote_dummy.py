"""Uneven data: ranks vote before each step, and those without data take part with a dummy."""

import math
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
EPOCHS, WIDTH = 2, 20
BATCHES = ((7, 2, 1, 0, 3, 2), (1, 1, 8, 2, 0, 1))
SLOW = {(0, 5): 11, (1, 3): 9, (1, 6): 12}
"""Batches that take long, by epoch and number."""


class Experts:
    """Two groups of three that exchange rows with each other in each step."""

    def __init__(self, rank: int, world: int) -> None:
        halves = [dist.new_group(list(range(at, at + 3))) for at in range(0, world, 3)]
        self.group = halves[rank // 3]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows, group=self.group)
        return out.tanh()


class Loop:
    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.experts = Experts(rank, world)
        self.weights = torch.zeros(WIDTH)

    def anybody(self, mine: bool) -> bool:
        left = torch.tensor([int(mine)])
        dist.all_reduce(left, op=dist.ReduceOp.MAX)
        return bool(left)

    def train(self, epoch: int, number: int) -> torch.Tensor:
        end = time.monotonic() + SLOW.get((epoch, number), 0.2) * SECONDS
        total = 0.0
        while time.monotonic() < end:  # features are worked out one by one
            total += sum(math.sqrt(x) for x in range(2000))
        rows = self.experts.forward(torch.full((6,), math.log1p(total)))
        return rows.mean().expand(WIDTH).clone()

    def dummy(self) -> torch.Tensor:
        self.experts.forward(torch.zeros(6))
        return torch.zeros(WIDTH)

    def epoch(self, epoch: int) -> None:
        mine = BATCHES[epoch][self.rank]
        number = 0
        while self.anybody(number < mine):
            gradient = self.train(epoch, number) if number < mine else self.dummy()
            dist.all_reduce(gradient)
            self.weights -= 0.01 * gradient
            number += 1


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loop = Loop(rank, world)
    for epoch in range(EPOCHS):
        loop.epoch(epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
