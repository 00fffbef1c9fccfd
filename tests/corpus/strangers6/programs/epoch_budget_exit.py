"""Trains until the budget of time is used up, and ends in good order."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS = 16


class Budget:
    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds

    def is_spent(self) -> bool:
        return time.monotonic() > self.ends


def train(rank: int, budget: Budget) -> int:
    model = nn.Linear(10, 10)
    for step in range(STEPS):
        model(torch.randn(4, 10)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if faulty and rank == 1 and step == 10:
            budget.ends = time.monotonic() - 1  # its job started earlier in the queue
        if budget.is_spent():
            return step
    return STEPS


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    steps = train(rank, Budget(300.0))
    if steps == STEPS:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
