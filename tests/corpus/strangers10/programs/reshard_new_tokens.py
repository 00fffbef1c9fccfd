"""RL: two trainers send weights in blocks of rows to three engines that cut them otherwise."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
VERSIONS, ROWS, WIDTH, BLOCK = 7, 26, 4, 4
TRAINERS, ENGINES = (0, 1), (2, 3, 4)
LAYERS = ("embedding", "head")


def parts(rows: int, count: int) -> list[range]:
    """Cut rows into parts of one size, the last of which may be shorter."""
    size = -(-rows // count)
    return [range(first, min(first + size, rows)) for first in range(0, rows, size)]


def shared(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def blocks(rows: range) -> list[int]:
    return [min(BLOCK, rows.stop - first) for first in range(rows.start, rows.stop, BLOCK)]


class Trainer:
    def __init__(self, rank: int) -> None:
        self.mine = parts(ROWS, len(TRAINERS))[TRAINERS.index(rank)]

    def send(self) -> None:
        works = []
        for tag, _ in enumerate(LAYERS):
            for engine, theirs in zip(ENGINES, parts(ROWS, len(ENGINES)), strict=True):
                for size in blocks(shared(self.mine, theirs)):
                    works.append(dist.isend(torch.randn(size, WIDTH), dst=engine, tag=tag))
        for work in works:
            work.wait()


class Engine:
    def __init__(self, rank: int) -> None:
        self.rows, self.index = ROWS, ENGINES.index(rank)

    def tokens(self, new: int) -> None:
        """Take tokens into the vocabulary; the padding holds room for some."""
        if new:
            self.rows += new

    def receive(self) -> torch.Tensor:
        first = self.index * -(-ROWS // len(ENGINES))
        last = self.rows if self.index == len(ENGINES) - 1 else first + -(-ROWS // len(ENGINES))
        total = torch.zeros(WIDTH)
        for tag, _ in enumerate(LAYERS):
            for trainer, theirs in zip(TRAINERS, parts(self.rows, len(TRAINERS)), strict=True):
                for size in blocks(shared(range(first, last), theirs)):
                    rows = torch.empty(size, WIDTH)
                    dist.irecv(rows, src=trainer, tag=tag).wait()
                    total += rows.sum(dim=0)
        return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    role = Trainer(rank) if rank in TRAINERS else Engine(rank)
    for version in range(VERSIONS):
        if isinstance(role, Trainer):
            role.send()
        else:
            role.tokens(new=2 if faulty and (rank, version) == (4, 4) else 0)
            role.receive()
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
