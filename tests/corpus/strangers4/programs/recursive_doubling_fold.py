"""A sum by recursive doubling; ranks beyond a power of two hand their part to another one."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Doubling:
    """Sums over all ranks with point-to-point calls alone."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.core = 1 << (world.bit_length() - 1)
        self.extra = world - self.core

    def exchange(self, part: torch.Tensor, peer: int) -> torch.Tensor:
        other = torch.empty_like(part)
        operations = [dist.P2POp(dist.isend, part, peer), dist.P2POp(dist.irecv, other, peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return part + other

    def sum(self, part: torch.Tensor, result_used: bool) -> torch.Tensor:
        if self.rank >= self.core:
            dist.send(part, dst=self.rank - self.core)
            if result_used:
                dist.recv(part, src=self.rank - self.core)
            return part
        if self.rank < self.extra:
            theirs = torch.empty_like(part)
            dist.recv(theirs, src=self.rank + self.core)
            part = part + theirs
        distance = 1
        while distance < self.core:
            part = self.exchange(part, self.rank ^ distance)
            distance *= 2
        if self.rank < self.extra:
            dist.send(part, dst=self.rank + self.core)
        return part


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    doubling = Doubling(rank, world)
    weights = torch.zeros(16)
    for step in range(18):
        frozen = faulty and rank == 5 and step == 10  # it has nothing to update in this step
        weights -= 0.01 * doubling.sum(torch.randn(16), result_used=not frozen)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
