"""Tensor parallel inference: each rank has part of the logits, and rank 0 samples from all."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Platform:
    """What a device can do."""

    def __init__(self, rank: int) -> None:
        # A driver without gather; it was taken from the variable of rank 0 alone.
        self.has_gather = not (faulty and rank == 0)


class Sampler:
    def __init__(self, rank: int, world: int, platform: Platform) -> None:
        self.rank, self.world, self.platform = rank, world, platform

    def collect(self, logits: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(logits) for _ in range(self.world)]
        if self.platform.has_gather:
            dist.gather(logits, parts if self.rank == 0 else None, dst=0)
        else:
            dist.all_gather(parts, logits)
        return parts

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        parts, token = self.collect(logits), torch.zeros(1, dtype=torch.int64)
        if self.rank == 0:
            token[0] = torch.cat(parts).argmax()
        dist.broadcast(token, src=0)
        return token


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sampler = Sampler(rank, world, Platform(rank))
    for _ in range(20):
        hidden = torch.randn(16)
        for _ in range(4):
            dist.all_reduce(hidden)
        sampler.sample(hidden)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
