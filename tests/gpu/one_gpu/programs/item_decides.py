"""A norm is summed where the loss is large; one rank decides by its own loss, not by the sum."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    losses = torch.ones(SMALL, device=device)
    norms = torch.ones(2 * SMALL, device=device)
    for step in range(10):
        own = losses * (9 if bad and step == 6 else 1)
        total = own.clone()
        dist.all_reduce(total)
        decides = own if bad else total / dist.get_world_size()
        if decides.max().item() > 5 or step == 3:
            dist.all_reduce(norms, op=dist.ReduceOp.MAX)  # bad
            norms.sum().item()
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
    gradients.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
