"""Training stops when the loss of the evaluation grows; one rank looks at its own loss."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def evaluate(losses: torch.Tensor, step: int) -> bool:
    own = losses + step
    total = own.clone()
    dist.all_reduce(total)
    total.max().item()
    return bad and step == 6


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    losses = torch.ones(SMALL, device=device)
    best = torch.ones(2 * LARGE, device=device)
    for step in range(10):
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)  # bad
        if step % 2 == 0 and evaluate(losses, step):
            break  # bad
    dist.broadcast(best, 0)
    best.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
