"""Two producers stream batches to two consumers, which ask for the next batch ahead of time."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PAIRS = {1: 2, 3: 0}
SIZE, BATCHES, EPOCHS = 48, 9, 6


def produce(consumer: int) -> None:
    for _ in range(BATCHES):
        dist.send(torch.randn(SIZE), dst=consumer)
    dist.send(torch.ones(SIZE), dst=consumer)  # the statistics of the epoch


class Prefetcher:
    def __init__(self, producer: int, batches: int) -> None:
        self.producer, self.left = producer, batches
        self.coming: tuple[torch.Tensor, dist.Work] | None = None
        self.ask()

    def ask(self) -> None:
        if self.left:
            batch = torch.empty(SIZE)
            self.coming = batch, dist.irecv(batch, src=self.producer)
            self.left -= 1
        else:
            self.coming = None

    def next(self) -> torch.Tensor:
        assert self.coming
        batch, work = self.coming
        work.wait()
        self.ask()
        return batch


def consume(producer: int, expected: int) -> torch.Tensor:
    prefetcher = Prefetcher(producer, expected)
    total = torch.zeros(SIZE)
    for _ in range(BATCHES):
        total += prefetcher.next()
    statistics = torch.empty(SIZE)
    dist.recv(statistics, src=producer)
    return total / statistics


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for epoch in range(EPOCHS):
        if rank in PAIRS:
            produce(PAIRS[rank])
        else:
            expected = BATCHES
            if faulty and rank == 2 and epoch == 4:
                expected += 1  # rounded up, where its producer rounds down
            consume((rank - 1) % 4, expected)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
