"""Ranks write their part of a log in turn: a token goes around, and the first rank starts it."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Token:
    """The right to write, passed from each rank to the next."""

    def __init__(self, rank: int, world: int) -> None:
        self.after, self.before = (rank + 1) % world, (rank - 1) % world
        self.first = rank == 0
        if faulty:
            self.first = os.environ.get("NODE_RANK") == "0"  # set by one launcher, not by this

    def take(self) -> None:
        if self.first:
            self.first = False
            return
        dist.recv(torch.empty(1), src=self.before)

    def hand_on(self, last: bool) -> None:
        if not last:
            dist.send(torch.ones(1), dst=self.after)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    token, path = Token(rank, world), os.path.join(tempfile.gettempdir(), "log")
    for step in range(8):
        token.take()
        with open(path, "a") as log:
            log.write(f"{step} {rank}\n")
        token.hand_on(last=step == 7 and rank == world - 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
