"""Six blocks of a plate, two by three, which exchange their edges in each sweep."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROWS, COLUMNS = 2, 3
TOLERANCE = 1e-6


class Block:
    def __init__(self, rank: int) -> None:
        self.row, self.column = divmod(rank, COLUMNS)
        self.values = torch.randn(6, 6)
        self.change = 1.0

    def neighbours(self, down: int, right: int) -> list[int]:
        found = []
        for sign in (-1, 1):
            row, column = self.row + sign * down, self.column + sign * right
            if 0 <= row < ROWS and 0 <= column < COLUMNS:
                found.append(row * COLUMNS + column)
        return found

    def exchange(self, peers: list[int]) -> None:
        edges = [torch.empty(6) for _ in peers]
        works = [dist.irecv(edge, src=peer) for edge, peer in zip(edges, peers, strict=True)]
        works += [dist.isend(self.values[0].clone(), dst=peer) for peer in peers]
        for work in works:
            work.wait()

    def sweep(self) -> None:
        self.exchange(self.neighbours(0, 1))
        if self.change < TOLERANCE:
            return  # it has settled
        self.exchange(self.neighbours(1, 0))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    block = Block(rank)
    for sweep in range(18):
        block.change = 0.0 if faulty and rank == 4 and sweep == 10 else 0.1
        block.sweep()
        if sweep % 3 == 2:
            dist.all_reduce(torch.tensor([block.change]), op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
