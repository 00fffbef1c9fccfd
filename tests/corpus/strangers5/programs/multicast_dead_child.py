"""Weights go down a tree of ranks by single messages, each rank handing them to its children."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Tree:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.suspected: set[int] = set()

    @property
    def children(self) -> list[int]:
        both = (2 * self.rank + 1, 2 * self.rank + 2)
        return [child for child in both if child < self.world]

    def spread(self, weights: torch.Tensor) -> None:
        if self.rank > 0:
            dist.recv(weights, src=(self.rank - 1) // 2)
        for child in self.children:
            if child not in self.suspected:
                dist.send(weights, dst=child)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tree, weights = Tree(rank, world), torch.zeros(40)
    for version in range(16):
        if faulty and rank == 1 and version == 11:
            tree.suspected.add(3)  # one heartbeat of it came too late
        tree.spread(weights)
        ready = torch.tensor([version])
        dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
