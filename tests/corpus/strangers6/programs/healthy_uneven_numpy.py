"""Ranks sort and factorise blocks of unequal size by numpy, and add up the results."""

import sys
import time

import numpy
import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
STEPS, LONG, SHORT = (12, 12.0, 1.5) if faulty else (4, 0.3, 0.02)


def factorise(seconds: float, generator: numpy.random.Generator) -> float:
    """Work on blocks until they are used up: as many as take that long."""
    ends = time.monotonic() + seconds
    total = 0.0
    while time.monotonic() < ends:
        block = generator.standard_normal((60, 60))
        total += float(numpy.linalg.svd(block, compute_uv=False)[0])
        numpy.sort(block, axis=None)
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = numpy.random.default_rng(rank)
    for step in range(STEPS):
        is_big = (step * 2 + 1) % world == rank
        value = factorise(LONG if is_big else SHORT, generator)
        dist.all_reduce(torch.tensor([value]))
        for _ in range(3):
            dist.broadcast(torch.randn(30), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
