"""A tensor parallel server; requests that have waited too long are dropped by each rank."""

import sys
from collections import deque

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LIMIT = 5


class Scheduler:
    def __init__(self, rank: int) -> None:
        self.rank, self.clock = rank, 0
        self.waiting: deque[tuple[int, int]] = deque()

    def receive(self, arrivals: list[int]) -> None:
        message = [arrivals if self.rank == 0 else None]
        dist.broadcast_object_list(message, src=0)
        self.waiting.extend((number, self.clock) for number in message[0])

    def drop_late(self) -> None:
        now = self.clock
        if faulty and self.rank == 1 and now > 16:
            now += 1  # a clock of its own, which is a little ahead
        while self.waiting and now - self.waiting[0][1] > LIMIT:
            self.waiting.popleft()

    def next_batch(self) -> list[int]:
        return [self.waiting.popleft()[0]] if self.waiting else []


def forward(batch: list[int]) -> None:
    hidden = torch.tensor([float(number) for number in batch]).repeat(16)
    for _ in range(3):
        dist.all_reduce(hidden)
        hidden = torch.tanh(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    scheduler = Scheduler(dist.get_rank())
    number = 0
    for tick in range(40):
        arrivals = []
        if tick in (2, 18):  # more at once than can be served before the limit
            arrivals = list(range(number, number + 6))
            number += len(arrivals)
        scheduler.receive(arrivals)
        scheduler.drop_late()
        batch = scheduler.next_batch()
        if batch:
            forward(batch)
        scheduler.clock += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
