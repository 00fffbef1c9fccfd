"""Experts on five ranks: the counts are shared, then the rows go by single messages."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, ROWS = 10, 4, 20


class Staging:
    """Memory for rows on their way out."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def fit(self, parts: list[torch.Tensor], own: int) -> list[torch.Tensor]:
        """Keep what there is room for."""
        left, kept = self.rows, []
        for peer, part in enumerate(parts):
            taken = part if peer == own else part[: max(0, left)]
            left -= 0 if peer == own else len(taken)
            kept.append(taken)
        return kept


class Experts:
    def __init__(self, rank: int, world: int, staging: Staging) -> None:
        self.rank, self.world, self.staging = rank, world, staging

    def route(self, rows: torch.Tensor) -> list[torch.Tensor]:
        choice = torch.arange(len(rows)) % self.world
        return [rows[choice == peer] for peer in range(self.world)]

    def counts(self, parts: list[torch.Tensor]) -> list[int]:
        mine = torch.tensor([len(part) for part in parts])
        table = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(table, mine)
        return [int(row[self.rank]) for row in table]

    def move(self, parts: list[torch.Tensor], expected: list[int]) -> list[torch.Tensor]:
        received = [torch.empty(count, WIDTH) for count in expected]
        received[self.rank] = parts[self.rank]
        works = []
        for peer in range(self.world):
            if peer == self.rank:
                continue
            if len(parts[peer]):
                works.append(dist.isend(parts[peer].contiguous(), dst=peer))
            if expected[peer]:
                works.append(dist.irecv(received[peer], src=peer))
        for work in works:
            work.wait()
        return received

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        parts = self.route(rows)
        expected = self.counts(parts)
        parts = self.staging.fit(parts, self.rank)
        received = self.move(parts, expected)
        done = [part.relu() for part in received]
        return torch.cat(self.move(done, [len(part) for part in parts]))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    staging = Staging(rows=64)
    experts = Experts(rank, world, staging)
    for step in range(STEPS):
        if faulty and (rank, step) == (1, 6):
            staging.rows = 8  # the rest is lent to the cache of a long prompt
        out = experts.forward(torch.randn(ROWS, WIDTH))
        dist.all_reduce(out.sum())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
