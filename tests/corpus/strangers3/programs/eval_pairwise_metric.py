"""Evaluate each few steps; rank 0 computes the metric of all embeddings while its peers wait."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def pairwise(points: list[list[float]]) -> float:
    """Return the smallest distance of two points."""
    best = float("inf")
    for first in range(len(points)):
        for second in range(len(points)):
            if first != second:
                difference = zip(points[first], points[second], strict=True)
                best = min(best, sum((a - b) ** 2 for a, b in difference))
    return best


def evaluate(rank: int, world: int, samples: int) -> None:
    parts = [torch.empty(samples, 4) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.randn(samples, 4), parts, dst=0)
    metric = torch.zeros(1)
    if parts is not None:
        metric += pairwise(torch.cat(parts).tolist())
    dist.broadcast(metric, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(1, 25):
        dist.all_reduce(torch.randn(32))
        if step % 8 == 0:
            whole = faulty and step == 16  # the whole set instead of a part
            evaluate(rank, world, samples=40_000 if whole else 12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
