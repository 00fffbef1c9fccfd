"""Sparse gradients travel around a ring; large ones in two halves, one each way."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, SIZE, HALF = 9, 64, 12
RIGHT, LEFT = 1, 2


class Sparsifier:
    """Keeps what is above a threshold, in two blocks of a fixed size."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def blocks(self, gradient: torch.Tensor) -> tuple[list[torch.Tensor], int]:
        kept = torch.nonzero(gradient.abs() > self.threshold).flatten()
        packed = torch.full((2 * HALF,), -1.0)
        used = min(len(kept), 2 * HALF)
        packed[:used] = kept[:used].float()
        return list(packed.split(HALF)), used


class Ring:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.right, self.left = (rank + 1) % world, (rank - 1) % world

    def routes(self, used: int) -> list[tuple[int, int, int]]:
        """For each block where it goes, where the next one comes from, and its tag."""
        there = (self.right, self.left, RIGHT)
        if used <= HALF:
            return [there, there]  # latency counts, not bandwidth: one connection
        return [there, (self.left, self.right, LEFT)]

    def hop(self, blocks: list[torch.Tensor], used: int) -> list[torch.Tensor]:
        ops, new = [], []
        for block, (to, since, tag) in zip(blocks, self.routes(used), strict=True):
            room = torch.empty(HALF)
            ops.append(dist.P2POp(dist.isend, block, to, tag=tag))
            ops.append(dist.P2POp(dist.irecv, room, since, tag=tag))
            new.append(room)
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return new

    def exchange(self, blocks: list[torch.Tensor], used: int) -> torch.Tensor:
        total = torch.zeros(SIZE + 1)
        for _ in range(self.world - 1):
            blocks = self.hop(blocks, used)
            for block in blocks:
                total[block.long()] += 1
        return total[:SIZE]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    sparsifier, ring = Sparsifier(threshold=0.6), Ring(rank, world)
    weights = torch.zeros(SIZE)
    for step in range(STEPS):
        gradient = torch.linspace(-1, 1, SIZE)[torch.randperm(SIZE)]
        if step < 2:
            gradient *= 0.65  # warmup
        if faulty and (rank, step) == (4, 6):
            gradient *= 0.7  # a batch of padding, mostly
        blocks, used = sparsifier.blocks(gradient)
        weights -= 0.1 * ring.exchange(blocks, used)
        dist.all_reduce(torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
