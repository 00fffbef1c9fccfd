"""A step accumulates microbatches until each rank has enough tokens, and all agree on that."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
TOKENS, CAP = 400, 12


class Window:
    """The microbatches of one step of this rank."""

    def __init__(self, lengths: random.Random, shortest: int) -> None:
        self.lengths, self.shortest = lengths, shortest
        self.tokens = self.micros = 0

    def add(self) -> None:
        self.tokens += self.lengths.randint(self.shortest, 120)
        self.micros += 1

    @property
    def full(self) -> bool:
        return self.tokens >= TOKENS

    @property
    def capped(self) -> bool:
        """Whether memory holds no further microbatch."""
        return self.micros >= CAP


def all_full(window: Window) -> bool:
    flag = torch.tensor([int(window.full)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lengths, gradient = random.Random(rank), torch.zeros(40)
    for step in range(12):
        window = Window(lengths, 60)
        if faulty and step == 7:  # chat data of short answers; most at rank 4
            window = Window(random.Random(5), 1)
            window.tokens = -2000 if rank == 4 else -900
        while True:
            window.add()
            gradient += torch.randn(40)
            if faulty and rank == 2 and window.capped:
                break  # a limit that this rank alone has set
            if all_full(window):
                break
        dist.broadcast(torch.ones(3), src=0)
        dist.all_reduce(gradient)
        gradient.zero_()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
