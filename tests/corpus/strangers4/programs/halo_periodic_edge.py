"""A field cut into slabs; each step exchanges the edges of neighbouring slabs."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WIDTH = 10


class Slab:
    """One rank's part of the field, with a row of each neighbour above and below."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.rows = torch.zeros(6, WIDTH)
        self.periodic = False

    def neighbours(self) -> list[tuple[int, int, int]]:
        """Return rank, own edge and halo row of each neighbour."""
        found = []
        if self.rank > 0:
            found.append((self.rank - 1, 1, 0))
        if self.rank < self.world - 1:
            found.append((self.rank + 1, -2, -1))
        elif self.periodic:
            found.append((0, -2, -1))
        return found

    def exchange(self) -> None:
        works, halos = [], []
        for peer, edge, halo in self.neighbours():
            row = torch.empty(WIDTH)
            works.append(dist.irecv(row, src=peer))
            works.append(dist.isend(self.rows[edge].clone(), dst=peer))
            halos.append((halo, row))
        for work in works:
            work.wait()
        for halo, row in halos:
            self.rows[halo] = row

    def relax(self) -> None:
        self.rows[1:-1] = (self.rows[:-2] + self.rows[2:]) / 2 + 0.01


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    slab = Slab(rank, world)
    for step in range(30):
        if faulty and rank == 5 and step == 17:
            slab.periodic = True  # read again from a file that was edited meanwhile
        slab.exchange()
        slab.relax()
        if step % 5 == 4:
            change = slab.rows.abs().max().reshape(1)
            dist.all_reduce(change, op=dist.ReduceOp.MAX)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
