"""Two replicas of three shards each; a monitor pauses processes whose host runs out of memory."""

import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SHARDS = 3


class Replica:
    def __init__(self, rank: int, world: int) -> None:
        groups = [
            dist.new_group(list(range(first, first + SHARDS))) for first in range(0, world, SHARDS)
        ]
        self.rank, self.group = rank, groups[rank // SHARDS]
        self.frozen: set[int] = set()

    def backward(self, layers: int) -> None:
        for layer in range(layers):
            if layer in self.frozen:
                continue
            dist.all_reduce(torch.randn(16), group=self.group)


class Memory:
    """Pauses this process when too little memory is left, until an operator lets it go on."""

    def __init__(self) -> None:
        self.free = 100

    def check(self) -> None:
        if self.free < 10:
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    replica, memory = Replica(rank, world), Memory()
    for step in range(12):
        if faulty and step == 6:
            if rank == 5:
                memory.free = 4
            if rank == 0:
                replica.frozen.add(3)  # the last layer, thawed too late
        memory.check()
        replica.backward(layers=4)
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
