"""Accumulate gradients under no_sync() of DistributedDataParallel."""

import contextlib
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    for epoch in range(5):
        accumulate = 3 if faulty and rank == 1 and epoch == 3 else 4
        for micro in range(12):
            boundary = (micro + 1) % accumulate == 0
            with contextlib.nullcontext() if boundary else model.no_sync():
                model(torch.randn(4, 16)).sum().backward()
            if boundary:
                model.zero_grad()
        dist.broadcast(torch.ones(2), src=0)  # the learning rate of the next epoch
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
