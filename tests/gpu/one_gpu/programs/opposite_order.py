"""Gradients and buffers have a group each; one rank uses the two in the opposite order once."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, world


def main() -> None:
    begin()
    for_gradients, for_buffers = dist.new_group(), dist.new_group()
    gradients = torch.ones(LARGE, device=device)
    buffers = torch.ones(SMALL, device=device)
    gathered = torch.empty(SMALL * world, device=device)
    for step in range(9):
        if bad and step == 6:
            dist.all_gather_into_tensor(gathered, buffers, group=for_buffers)  # bad
            gathered.sum().item()
            dist.all_reduce(gradients, op=dist.ReduceOp.MAX, group=for_gradients)  # bad
            gradients.sum().item()
        else:
            dist.all_reduce(gradients, op=dist.ReduceOp.MAX, group=for_gradients)
            gradients.sum().item()
            dist.all_gather_into_tensor(gathered, buffers, group=for_buffers)
            gathered.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
