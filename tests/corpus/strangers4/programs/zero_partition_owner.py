"""An optimizer whose state is shared out: each parameter's gradient goes to its owner alone."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Partition:
    """Assigns parameters to ranks, the largest first, each to the rank with the least."""

    def __init__(self, sizes: dict[str, int], world: int) -> None:
        self.owners: dict[str, int] = {}
        held = [0] * world
        for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
            owner = held.index(min(held))
            self.owners[name] = owner
            held[owner] += sizes[name]


class Optimizer:
    def __init__(self, sizes: dict[str, int], world: int) -> None:
        self.sizes, self.world = sizes, world
        self.partition = Partition(sizes, world)

    def add_group(self, sizes: dict[str, int]) -> None:
        """Take further parameters in, and share all out anew."""
        self.sizes |= sizes
        self.partition = Partition(self.sizes, self.world)

    def step(self) -> None:
        for name, size in self.sizes.items():
            dist.reduce(torch.randn(size), dst=self.partition.owners[name])
        for name, size in self.sizes.items():
            dist.broadcast(torch.randn(size), src=self.partition.owners[name])


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = Optimizer({"embedding": 40, "query": 20, "value": 20, "output": 10}, world)
    for step in range(14):
        if step == 6:
            # The adapter of rank 0 counts for the largest parameter: its rank was typed wrong.
            rows = 60 if faulty and rank == 0 else 6
            optimizer.add_group({"adapter": rows})
            optimizer.sizes["adapter"] = 6
        optimizer.step()
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
