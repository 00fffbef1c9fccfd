"""A thread reads batches ahead into a queue from which the training loop takes them."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Prefetcher:
    """Holds at most two batches."""

    def __init__(self, shards: list[str]) -> None:
        self.batches: queue.Queue[torch.Tensor] = queue.Queue(maxsize=2)
        self.shards = shards
        threading.Thread(target=self._produce, daemon=True).start()

    def _produce(self) -> None:
        for shard in self.shards:
            self.batches.put(self._read(shard))

    def _read(self, shard: str) -> torch.Tensor:
        rows = int(shard.split("-")[1])
        return torch.randn(rows, 8)

    def take(self) -> torch.Tensor:
        return self.batches.get()


def shards(rank: int) -> list[str]:
    names = [f"shard-{4 + number % 3}" for number in range(16)]
    if faulty and rank == 2:
        names[9] = "shard-x"  # a broken name
    return names


def main() -> None:
    dist.init_process_group("gloo")
    prefetcher = Prefetcher(shards(dist.get_rank()))
    weights = torch.zeros(8)
    for _ in range(16):
        gradient = prefetcher.take().sum(0)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
