"""Hybrid sharding by hand: shards within three ranks, replicas across."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LAYERS = 4


class Hybrid:
    def __init__(self, shard: dist.ProcessGroup, replica: dist.ProcessGroup) -> None:
        self.shard, self.replica = shard, replica
        self.whole: set[int] = set()
        self.exact = False

    def gather(self, layer: int) -> None:
        if layer in self.whole:
            return
        parts = [torch.empty(12) for _ in range(3)]
        dist.all_gather(parts, torch.randn(12), group=self.shard)

    def scatter_gradient(self) -> None:
        gradient, part = torch.randn(36), torch.empty(36)
        if self.exact:
            dist.all_reduce(gradient, group=self.shard)
        else:
            dist.all_to_all_single(part, gradient, group=self.shard)

    def step(self) -> None:
        for layer in range(LAYERS):
            self.gather(layer)
        for _ in range(LAYERS):
            self.scatter_gradient()
        dist.all_reduce(torch.randn(12), group=self.replica)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shards = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    replicas = [dist.new_group([first, first + 3]) for first in range(3)]
    hybrid = Hybrid(shards[rank // 3], replicas[rank % 3])
    for step in range(10):
        if faulty and step == 6:
            if rank == 0:
                hybrid.whole.add(2)  # left over from an evaluation
            if rank == 4:
                hybrid.exact = True  # an option for tests
        hybrid.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
