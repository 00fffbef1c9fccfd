"""Two replicas of three ranks: kernels are tuned and tables gathered within a replica."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, SIZE = 14, 3


class Tuner:
    """Measures kernels for new sizes; all ranks of a replica take the slowest one's time."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.times: dict[int, float] = {}

    def candidates(self, step: int) -> list[int]:
        sizes = [8, 16] if step % 3 == 0 else []
        if faulty and self.rank == 1 and step == 6:
            sizes.append(24)  # it has more memory free than the others
        return [size + step for size in sizes]

    def tune(self, step: int) -> None:
        for size in self.candidates(step):
            begun = time.perf_counter()
            torch.randn(size, size).square().sum()
            seconds = torch.tensor([time.perf_counter() - begun])
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=self.group)
            self.times[size] = seconds.item()


class Tables:
    """Embedding tables that are spread over a replica, and gathered when they are used."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.tables: dict[str, torch.Tensor] = {}

    def get(self, key: str) -> torch.Tensor:
        if key in self.tables:
            return self.tables[key]
        parts = [torch.empty(5) for _ in range(SIZE)]
        dist.all_gather(parts, torch.randn(5), group=self.group)
        return torch.cat(parts)

    def keep(self, key: str, table: torch.Tensor) -> None:
        self.tables[key] = table


def replica_of(rank: int, world: int) -> dist.ProcessGroup:
    mine = None
    for start in range(0, world, SIZE):
        group = dist.new_group(range(start, start + SIZE))
        if start <= rank < start + SIZE:
            mine = group
    assert mine is not None
    return mine


class Trainer:
    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.group = replica_of(rank, world)
        self.tuner, self.tables = Tuner(rank, self.group), Tables(rank, self.group)

    def step(self, step: int) -> None:
        self.tuner.tune(step)
        rows = torch.randn(15)
        for key in ("users", "items"):
            table = self.tables.get(key)
            if faulty and self.rank == 3 and step == 7:
                self.tables.keep("users", table)
            rows = rows + table
        dist.all_reduce(rows, group=self.group)
        if step % 5 == 4:
            dist.all_reduce(torch.ones(1))


def main() -> None:
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), dist.get_world_size())
    for step in range(STEPS):
        trainer.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
