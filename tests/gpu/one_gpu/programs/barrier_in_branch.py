"""All wait after a checkpoint; one rank takes the branch without a barrier (none is due there)."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def save(due: bool) -> None:
    if due:
        dist.barrier()  # bad


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    losses = torch.ones(SMALL, device=device)
    for step in range(12):
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)
        losses.sum().item()
        if step % 2 == 1:
            save(due=not (bad and step == 7))  # bad
    dist.barrier()
    dist.destroy_process_group()


main()
