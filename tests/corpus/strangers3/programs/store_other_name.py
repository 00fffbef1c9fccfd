"""Workers publish their addresses in the store before each phase and wait for those of all."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

faulty = sys.argv[1:] == ["faulty"]


class Directory:
    """The addresses of all workers, by phase."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.store = dist.PrefixStore("directory", _get_default_store())

    def key(self, phase: int, worker: str) -> str:
        return f"{phase}/{worker}"

    def publish(self, phase: int, name: str) -> None:
        self.store.set(self.key(phase, name), f"127.0.0.1:{5000 + self.rank}")

    def gather(self, phase: int) -> list[str]:
        keys = [self.key(phase, f"worker-{number}") for number in range(self.world)]
        self.store.wait(keys)
        return [self.store.get(key).decode() for key in keys]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    directory = Directory(rank, dist.get_world_size())
    for phase in range(4):
        name = f"worker-{rank}"
        if faulty and rank == 2 and phase == 1:
            name = f"worker-0{rank}"  # the name of the host after a restart
        directory.publish(phase, name)
        directory.gather(phase)
        for _ in range(5):
            dist.all_reduce(torch.randn(16))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
