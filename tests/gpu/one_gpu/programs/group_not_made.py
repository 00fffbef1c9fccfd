"""A group for the writers of a checkpoint is made when the first is due; one rank does not."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    shard = torch.ones(SMALL, device=device)
    writers = None
    for step in range(10):
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
        gradients.sum().item()
        if step == 6 and not bad:
            writers = dist.new_group()  # bad
        if writers is not None:
            dist.all_reduce(shard, op=dist.ReduceOp.MAX, group=writers)
            shard.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
