"""A thread reads ahead; at the end of an epoch it is asked to stop and waited for."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS, AHEAD, WIDTH = 8, 6, 2, 15


class Source:
    """Rows of one rank: more of them in some epochs than are used."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.generator = torch.Generator().manual_seed(rank)

    def batches(self, epoch: int) -> int:
        spare = 1 + (epoch + self.rank) % 2
        if faulty and self.rank == 3 and epoch >= 5:
            spare += 2  # a new shard has arrived
        return STEPS + spare

    def read(self) -> torch.Tensor:
        return torch.randn(4, WIDTH, generator=self.generator)


class Prefetcher:
    def __init__(self, source: Source, epoch: int) -> None:
        self.source, self.epoch = source, epoch
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(maxsize=AHEAD)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self) -> None:
        for _ in range(self.source.batches(self.epoch)):
            if self.stop.is_set():
                return
            self.ready.put(self.source.read())

    def next(self) -> torch.Tensor:
        return self.ready.get()

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


def train(weights: torch.Tensor, prefetcher: Prefetcher) -> torch.Tensor:
    for _ in range(STEPS):
        gradient = prefetcher.next().mean(0) * weights
        dist.all_reduce(gradient)
        weights = weights - 0.01 * gradient
    return weights


def run_epoch(weights: torch.Tensor, source: Source, epoch: int) -> torch.Tensor:
    prefetcher = Prefetcher(source, epoch)
    try:
        return train(weights, prefetcher)
    finally:
        prefetcher.close()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    source, weights = Source(rank), torch.ones(WIDTH)
    for epoch in range(EPOCHS):
        weights = run_epoch(weights, source, epoch)
        dist.broadcast(weights, src=epoch % dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
