"""Stages with fewer and fewer ranks: those that are done say goodbye, the others go on."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = [12.0, 15.0, 17.0, 13.0, 14.0] if faulty else [0.2, 0.1, 0.2, 0.1, 0.1]
MEMBERS = [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2)]


class Stage:
    """A stage of the successive halving.

    Args:
        group: Its ranks.
        slowest: Which of them prepares data for all.
        seconds: How long that takes.
    """

    def __init__(self, group: dist.ProcessGroup, slowest: int, seconds: float) -> None:
        self.group, self.slowest, self.seconds = group, slowest, seconds

    def prepare(self, rank: int) -> torch.Tensor:
        rows = torch.zeros(16)
        ends = time.monotonic() + (self.seconds if rank == self.slowest else self.seconds / 10)
        while time.monotonic() < ends:
            rows += torch.randn(64, 16).sort(dim=0).values.mean(0)
        return rows

    def run(self, rank: int) -> float:
        rows = self.prepare(rank)
        dist.broadcast(rows, src=self.slowest, group=self.group)
        for _ in range(20):
            dist.all_reduce(rows, group=self.group)
            rows = rows / rows.norm()
        return rows.sum().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group(list(members)) for members in MEMBERS]
    scores = []
    for number, members in enumerate(MEMBERS):
        if rank not in members:
            break
        slowest = members[(number * 2 + 1) % len(members)]
        scores.append(Stage(groups[number], slowest, SECONDS[number]).run(rank))
        dist.barrier(group=groups[number])
    print(f"rank {rank} ends after {len(scores)} stages")
    if rank in MEMBERS[-1]:
        dist.barrier(group=groups[-1])


if __name__ == "__main__":
    main()
