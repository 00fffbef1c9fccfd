"""Three ranks generate samples, two train on them by what they have; all meet at the end."""

import random
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Generator:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group, self.random = rank, group, random.Random(rank)

    def sample(self, bound: float) -> float:
        """Draw until a value is below the bound."""
        while True:
            value = self.random.random()
            if value < bound:
                return value

    def run(self) -> None:
        for number in range(14):
            bound = -0.1 if faulty and self.rank == 2 and number == 8 else 0.1
            dist.all_reduce(torch.tensor([self.sample(bound)]), group=self.group)
            dist.barrier(group=self.group)


class Trainer:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group, self.loaded = rank, group, threading.Event()

    def load(self, number: int) -> None:
        if faulty and self.rank == 4 and number == 6:
            return  # the file is empty, and nobody is notified
        self.loaded.set()

    def run(self) -> None:
        for number in range(12):
            threading.Thread(target=self.load, args=(number,)).start()
            self.loaded.wait()
            self.loaded.clear()
            dist.all_reduce(torch.randn(30), group=self.group)
            dist.broadcast(torch.randn(6), src=3, group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generating, training = dist.new_group([0, 1, 2]), dist.new_group([3, 4])
    if rank < 3:
        Generator(rank, generating).run()
    else:
        Trainer(rank, training).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
