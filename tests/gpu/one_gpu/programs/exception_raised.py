"""Sums by hand; one rank ends by an exception, and its peers go on to the next call."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def check(losses: torch.Tensor, step: int) -> None:
    if bad and step == 6:
        raise ValueError(f"loss is not finite in step {step}")  # bad
    losses.sum().item()


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    losses = torch.ones(SMALL, device=device)
    for step in range(9):
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
        check(losses, step)  # bad
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)  # bad
    dist.barrier()
    dist.destroy_process_group()


main()
