"""Documents are packed into rows of equal length, so that there is little to pad."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROWS, LENGTH = 8, 1000


class Packer:
    """Puts documents into rows and moves them until the rows are as equal as can be."""

    def __init__(self, documents: list[int]) -> None:
        self.rows: list[list[int]] = [[] for _ in range(ROWS)]
        for number, document in enumerate(documents):
            self.rows[number % ROWS].append(document)

    def spread(self) -> int:
        lengths = [sum(row) for row in self.rows]
        return max(lengths) - min(lengths)

    def move(self) -> bool:
        """Move a document from the longest row to the shortest; return whether it changed."""
        longest = max(self.rows, key=sum)
        shortest = min(self.rows, key=sum)
        if longest is shortest:
            return False
        document = min(longest)
        longest.remove(document)
        shortest.append(document)
        return True

    def pack(self, tolerance: int) -> list[list[int]]:
        while self.spread() > tolerance:
            if not self.move():
                break
        return self.rows


def documents(rank: int, step: int) -> list[int]:
    drawn = random.Random(step * 31 + rank)
    if faulty and rank == 4 and step == 11:
        return [LENGTH] * (ROWS + 1)  # one more than there are rows, all of full length
    return [drawn.choice((10, 20, 30)) for _ in range(ROWS * 12)]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(16):
        rows = Packer(documents(rank, step)).pack(tolerance=60)
        longest = torch.tensor([max(map(sum, rows))])
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        dist.all_reduce(torch.randn(64))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
