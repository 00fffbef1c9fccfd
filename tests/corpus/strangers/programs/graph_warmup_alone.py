"""Serve with a cache of graphs by batch size; a size that is new is warmed up with three runs."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]

SIZES = [1, 2, 4, 8, 4, 2, 8, 1, 2, 4, 8, 1, 4]


def forward() -> None:
    dist.all_reduce(torch.randn(32))
    dist.all_reduce(torch.randn(32))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    captured: set[int] = set()
    for step, size in enumerate(SIZES):
        dist.broadcast(torch.ones(8), src=0)  # what the scheduler says
        if faulty and rank == 3 and step == 9:
            captured.discard(size)  # its cache is smaller
        if size not in captured:
            for _ in range(3):
                forward()
            captured.add(size)
        forward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
