"""One rank packs documents for its neighbour, and takes long for some; all others wait."""

import random
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
STEPS, WIDTH = 12, 16
FEEDER, PACKER = 1, 3
WORK = (1, 1, 2, 1, 25, 1, 3, 40, 1, 2, 35, 1)


class Packer:
    """First fit, decreasing, over and over with other orders, for as long as there is time."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def fit(self, lengths: list[int], room: int) -> int:
        bins: list[int] = []
        for length in sorted(lengths, reverse=True):
            for at, used in enumerate(bins):
                if used + length <= room:
                    bins[at] += length
                    break
            else:
                bins.append(length)
        return len(bins)

    def pack(self, step: int) -> int:
        until, best = time.monotonic() + WORK[step] * SECONDS, 10**9
        while time.monotonic() < until:
            lengths = [self.random.randrange(1, 100) for _ in range(200)]
            best = min(best, self.fit(lengths, 128))
        return best

    def run(self, step: int) -> None:
        dist.send(torch.tensor([self.pack(step)]), dst=FEEDER)


class Trainer:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.weights = torch.zeros(WIDTH)

    def run(self, step: int) -> None:
        bins = torch.zeros(1, dtype=torch.int64)
        if self.rank == FEEDER:
            dist.recv(bins, src=PACKER)
        dist.all_reduce(bins, group=self.group)
        gradient = torch.rand(WIDTH)
        dist.all_reduce(gradient, group=self.group)
        self.weights -= 0.01 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, FEEDER, 2])
    role = Packer() if rank == PACKER else Trainer(rank, trainers)
    for step in range(STEPS):
        role.run(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
