"""Blocks of a grid on one host pass their edges on in shared memory, each with a generation."""

import mmap
import pathlib
import struct
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, CELLS, SLOT = 12, 16, 32
FILE = pathlib.Path("edges.shm")


class Edges:
    """For each block its generation, and its first and last cell at even and odd generations."""

    def __init__(self, world: int) -> None:
        with FILE.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), world * 2 * SLOT)

    def place(self, rank: int, generation: int) -> int:
        return (2 * rank + generation % 2) * SLOT

    def publish(self, rank: int, generation: int, first: float, last: float) -> None:
        place = self.place(rank, generation)
        struct.pack_into("dd", self.memory, place + 8, first, last)
        struct.pack_into("q", self.memory, place, generation)

    def read(self, rank: int, generation: int) -> tuple[float, float]:
        place = self.place(rank, generation)
        while struct.unpack_from("q", self.memory, place)[0] != generation:
            time.sleep(0.002)
        first, last = struct.unpack_from("dd", self.memory, place + 8)
        return first, last


class Block:
    def __init__(self, rank: int, world: int, edges: Edges) -> None:
        self.rank, self.world, self.edges = rank, world, edges
        self.cells = torch.rand(CELLS, dtype=torch.float64)
        self.generation = 0

    def substeps(self, step: int) -> int:
        steep = faulty and (self.rank, step) == (2, 6)
        return 2 if steep else 1

    def relax(self) -> None:
        self.cells[1:-1] += 0.2 * (self.cells[2:] - 2 * self.cells[1:-1] + self.cells[:-2])
        self.generation += 1

    def exchange(self) -> None:
        first, last = float(self.cells[0]), float(self.cells[-1])
        self.edges.publish(self.rank, self.generation, first, last)
        if self.rank > 0:
            self.cells[0] = self.edges.read(self.rank - 1, self.generation)[1]
        if self.rank + 1 < self.world:
            self.cells[-1] = self.edges.read(self.rank + 1, self.generation)[0]

    def step(self, step: int) -> None:
        for _ in range(self.substeps(step)):
            self.relax()
        self.exchange()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        FILE.write_bytes(bytes(world * 2 * SLOT))
    dist.barrier()
    block = Block(rank, world, Edges(world))
    for step in range(STEPS):
        block.step(step)
        change = torch.tensor([float(block.cells.std())])
        dist.all_reduce(change, op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
