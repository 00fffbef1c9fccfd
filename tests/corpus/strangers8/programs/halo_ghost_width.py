"""Blocks of two rows and three columns exchange the ghost cells of their common edges."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROWS, COLUMNS, SIZE, SWEEPS = 2, 3, 16, 15


def neighbours(rank: int) -> list[int]:
    row, column = divmod(rank, COLUMNS)
    places = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [
        down * COLUMNS + right
        for down, right in places
        if 0 <= down < ROWS and 0 <= right < COLUMNS
    ]


class Block:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.cells = torch.randn(SIZE, SIZE)
        self.ghosts = {peer: torch.zeros(SIZE) for peer in neighbours(rank)}
        self.widths = dict.fromkeys(self.ghosts, 1)

    def edge(self, peer: int) -> torch.Tensor:
        if abs(peer - self.rank) == 1:
            return self.cells[:, 0 if peer < self.rank else -1].contiguous()
        return self.cells[0 if peer < self.rank else -1].contiguous()

    def exchange(self) -> None:
        calls = []
        for peer, _ghost in self.ghosts.items():
            calls.append(dist.P2POp(dist.isend, self.edge(peer), peer))
        for peer, width in self.widths.items():
            if width:
                calls.append(dist.P2POp(dist.irecv, self.ghosts[peer], peer))
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    def refine(self, gone: int) -> None:
        """Leave the ghost cells of one edge to the finer level."""
        self.widths[gone] = 0

    def relax(self) -> float:
        before = self.cells.clone()
        inner = self.cells[1:-1, 1:-1]
        inner += 0.1 * (sum(self.ghosts.values()).mean() - inner)
        return (self.cells - before).abs().max().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    block = Block(rank)
    for sweep in range(SWEEPS):
        if faulty and rank == 3 and sweep == 9:
            block.refine(gone=0)
        block.exchange()
        residual = torch.tensor([block.relax()])
        dist.all_reduce(residual, op=dist.ReduceOp.MAX)
        if sweep % 5 == 4:
            dist.broadcast(torch.ones(4), src=0)  # the next time step
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
