"""Attention over a sequence that is shared out: keys go round a ring of ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Ring:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.skip_masked = False

    def rotate(self, keys: torch.Tensor) -> torch.Tensor:
        other = torch.empty_like(keys)
        operations = [
            dist.P2POp(dist.isend, keys, (self.rank + 1) % self.world),
            dist.P2POp(dist.irecv, other, (self.rank - 1) % self.world),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return other

    def attend(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(queries)
        for hop in range(self.world):
            source = (self.rank - hop) % self.world
            if source <= self.rank:
                output += torch.softmax(queries @ keys.T, -1) @ keys
            elif self.skip_masked:
                break  # what comes now is masked as well
            if hop < self.world - 1:
                keys = self.rotate(keys)
        return output


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ring = Ring(rank, world)
    for step in range(10):
        if faulty and rank == 0 and step == 6:
            ring.skip_masked = True  # a kernel that was chosen for short queries
        hidden = ring.attend(torch.randn(4, 8), torch.randn(4, 8))
        dist.all_reduce(hidden.norm().reshape(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
