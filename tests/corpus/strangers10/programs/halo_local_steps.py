"""Blocks in a row with time steps of their own: a fine block exchanges its edges twice a step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, REGRID, CELLS = 12, 4, 9
STEEP = 0.8


class Levels:
    """In how many parts each block divides a step; shared when the grid is made anew."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.known = [1] * world
        self.wanted = 1

    def want(self, error: float) -> None:
        self.wanted = 2 if error > STEEP else 1
        if error > 4 * STEEP:
            self.known[self.rank] = 2  # would be unstable before the next regrid

    def regrid(self) -> None:
        levels = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(levels, torch.tensor([self.wanted]))
        self.known = [int(level) for level in levels]

    def exchanges(self, peer: int) -> int:
        return max(self.known[self.rank], self.known[peer])


class Block:
    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.levels = Levels(rank, world)
        self.peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < world]
        self.cells = torch.linspace(0, 1, CELLS) + rank

    def exchange(self, part: int) -> None:
        ops, edges = [], []
        for peer in self.peers:
            if part >= self.levels.exchanges(peer):
                continue
            edge = torch.empty(1)
            own = self.cells[:1] if peer < self.rank else self.cells[-1:]
            ops.append(dist.P2POp(dist.isend, own.clone(), peer))
            ops.append(dist.P2POp(dist.irecv, edge, peer))
            edges.append(edge)
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        for edge in edges:
            self.cells += 0.01 * (edge - self.cells.mean())

    def advance(self) -> None:
        for part in range(max(self.levels.exchanges(peer) for peer in self.peers)):
            self.exchange(part)

    def error(self, step: int) -> float:
        front = (step // 2) % 5  # a wave passes the blocks
        error = 1.0 if front == self.rank else 0.1
        if faulty and (self.rank, step) == (2, 5):
            error *= 4  # it has become a shock here
        return error


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    block = Block(rank, world)
    for step in range(STEPS):
        if step % REGRID == 0:
            block.levels.regrid()
        block.levels.want(block.error(step))
        block.advance()
        length = torch.tensor([0.1 / block.levels.wanted])
        dist.all_reduce(length, op=dist.ReduceOp.MIN)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
