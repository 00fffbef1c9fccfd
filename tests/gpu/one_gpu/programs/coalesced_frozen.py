"""Gradients are reduced together; one rank has frozen a layer and leaves its gradient out."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, cuda, device
from torch.distributed.distributed_c10d import _coalescing_manager


def reduce_all(gradients: list[torch.Tensor]) -> None:
    with _coalescing_manager(device=device if cuda else None, async_ops=True) as together:  # bad
        for gradient in gradients:
            dist.all_reduce(gradient)  # bad
    together.wait()


def main() -> None:
    begin()
    for step in range(9):
        gradients = [torch.ones(size, device=device) for size in (LARGE, SMALL, LARGE)]
        norms = torch.ones(2 * SMALL, device=device)
        if bad and step == 6:
            gradients.pop(1)
        reduce_all(gradients)  # bad
        dist.all_reduce(norms)
        norms.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
