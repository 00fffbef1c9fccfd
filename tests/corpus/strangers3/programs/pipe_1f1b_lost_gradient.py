"""A pipeline of four stages with the 1F1B schedule: one forward, one backward."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
MICROS = 6


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank < world - 1 else None
        self.warmup = world - rank - 1

    def exchange(self, send_to: int | None, receive_from: int | None) -> None:
        """Send to one neighbour and receive from one at the same time."""
        operations = []
        if send_to is not None:
            operations.append(dist.P2POp(dist.isend, torch.randn(32), send_to))
        if receive_from is not None:
            operations.append(dist.P2POp(dist.irecv, torch.empty(32), receive_from))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    def run(self, lost: int | None) -> None:
        warmup = min(self.warmup, MICROS)
        for _ in range(warmup):
            self.exchange(None, self.before)
            self.exchange(self.after, None)
        steady = MICROS - warmup
        if steady:
            self.exchange(None, self.before)
        for micro in range(steady):
            self.exchange(self.after, self.after)  # forward out, gradient in
            last = micro == steady - 1
            self.exchange(self.before, None if last else self.before)
        for micro in range(warmup):
            if micro == lost:
                continue  # its loss was infinite, and there is nothing to learn
            self.exchange(None, self.after)
            self.exchange(self.before, None)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(rank, dist.get_world_size())
    for step in range(9):
        stage.run(lost=1 if faulty and rank == 0 and step == 5 else None)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
