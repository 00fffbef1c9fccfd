"""Sharded weights in two replicas: owners broadcast their layers and take the gradients."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LAYERS = 6


class Replica:
    """Three ranks, each of which owns every third layer."""

    def __init__(self, members: list[int], group: dist.ProcessGroup) -> None:
        self.members, self.group = members, group

    def owner(self, layer: int) -> int:
        return self.members[layer % len(self.members)]

    def forward(self, dropped: set[int]) -> None:
        for layer in range(LAYERS):
            if layer in dropped:
                continue
            weight = torch.ones(24)
            dist.broadcast(weight, src=self.owner(layer), group=self.group)

    def backward(self, frozen: set[int]) -> None:
        for layer in reversed(range(LAYERS)):
            if layer in frozen:
                continue
            dist.reduce(torch.randn(24), dst=self.owner(layer), group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shards = [[0, 1, 2], [3, 4, 5]]
    groups = [dist.new_group(members) for members in shards]
    pairs = [dist.new_group([number, number + 3]) for number in range(3)]
    replica = Replica(shards[rank // 3], groups[rank // 3])
    for step in range(11):
        here = faulty and step == 7
        replica.forward(dropped={2} if here and rank == 1 else set())  # stochastic depth
        replica.backward(frozen={0} if here and rank == 5 else set())  # gets no gradient
        dist.all_reduce(torch.randn(48), group=pairs[rank % 3])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
