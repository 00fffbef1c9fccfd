"""Four data parallel engines step together; an engine without requests runs dummy batches."""

import sys
from collections import deque

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Scheduler:
    """Admits requests as long as there are blocks, and preempts the last ones if not."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.waiting: deque[int] = deque()
        self.running: list[int] = []

    def schedule(self) -> list[int]:
        while self.waiting:
            needed = self.waiting.popleft()
            if needed <= self.blocks - sum(self.running):
                self.running.append(needed)
            elif self.running:
                self.waiting.appendleft(needed)
                self.waiting.append(self.running.pop())  # preempt, and look again
            elif needed > self.blocks:
                self.waiting.append(needed)  # too long for this engine: may fit later
            if len(self.running) >= 4:
                break
        return self.running

    def finish(self) -> None:
        self.running.clear()


def step(requests: list[int], layers: int = 3) -> None:
    tokens = torch.tensor([max(len(requests), 1)])  # a dummy batch has one token
    dist.all_reduce(tokens, op=dist.ReduceOp.MAX)
    for _ in range(layers):
        dist.all_reduce(torch.randn(16))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scheduler = Scheduler(blocks=32)
    for number in range(30):
        if (number + rank) % 3:
            scheduler.waiting.append(4 + number % 5)
        if faulty and rank == 3 and number == 18:
            scheduler.waiting.append(40)
        step(scheduler.schedule())
        scheduler.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
