"""Ranks 0 and 1 evaluate on a group of their own while the others wait for what comes of it."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EVALUATORS = [0, 1]


class Meter:
    """Counts of right answers, summed over a group.

    Args:
        group: Of the ranks that count; None for all.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.counts = group, torch.zeros(2)

    def add(self, right: int, seen: int) -> None:
        self.counts += torch.tensor([float(right), float(seen)])

    def value(self) -> float:
        dist.all_reduce(self.counts, group=self.group)
        return (self.counts[0] / self.counts[1]).item()


def evaluate(rank: int, epoch: int, group: dist.ProcessGroup) -> float:
    meters = {"top1": Meter(group), "top5": Meter(group)}
    if faulty and rank == 1 and epoch == 5:
        meters["top5"] = Meter()  # made anew after an empty class, without the group
    for _ in range(6):
        for meter in meters.values():
            meter.add(3, 4)
    return sum(meter.value() for meter in meters.values())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group(EVALUATORS)
    for epoch in range(9):
        for _ in range(4):
            dist.all_reduce(torch.randn(24))
        found = torch.zeros(1)
        if rank in EVALUATORS:
            found += evaluate(rank, epoch, group)
        dist.broadcast(found, src=0)
        if found.item() < 0.1:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
