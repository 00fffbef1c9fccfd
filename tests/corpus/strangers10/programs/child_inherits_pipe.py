"""Each rank has its documents counted by children that read them from pipes to the end."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, DOCUMENT, EACH = 8, 100, 40
CONTEXT = multiprocessing.get_context("fork")


class Counter:
    """A child that counts words."""

    def __init__(self) -> None:
        source, self.sink = os.pipe()
        self.results, sender = CONTEXT.Pipe(duplex=False)
        self.child = CONTEXT.Process(target=self._count, args=(source, sender), daemon=True)
        self.child.start()
        os.close(source)
        sender.close()

    def _count(self, source: int, sender: multiprocessing.connection.Connection) -> None:
        os.close(self.sink)
        with open(source, "rb") as documents:
            sender.send(len(documents.read().split()))

    def feed(self, documents: list[bytes]) -> None:
        with open(self.sink, "wb") as sink:
            sink.writelines(documents)

    def result(self) -> int:
        count = self.results.recv()
        self.child.join()
        return count


class Shard:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def documents(self, step: int) -> list[bytes]:
        number = 10 + 5 * ((self.rank + step) % 5)
        if faulty and (self.rank, step) == (3, 5):
            number = 2 * EACH - 7  # a crawl of many short pages
        return [b"word " * (DOCUMENT // 5)] * number


def count(documents: list[bytes]) -> int:
    """Count with a child for each part of the documents."""
    parts = [documents[k : k + EACH] for k in range(0, len(documents), EACH)]
    counters = [Counter() for _ in parts]
    total = 0
    for counter, part in zip(counters, parts, strict=True):
        counter.feed(part)
        total += counter.result()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = Shard(rank)
    for step in range(STEPS):
        words = torch.tensor([count(shard.documents(step))])
        dist.all_reduce(words)
        shares = [torch.empty_like(words) for _ in range(world)]
        dist.all_gather(shares, words)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
