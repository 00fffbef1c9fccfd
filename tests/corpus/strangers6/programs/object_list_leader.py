"""The rank with the most free space makes the plan of an epoch, and hands it out as an object."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS = 9, 5


class Disk:
    def __init__(self, rank: int) -> None:
        self.free = 100 + 10 * (rank == 1)

    def clean(self) -> None:
        self.free += 50


def elect(rank: int, disk: Disk, cleans: bool) -> int:
    free: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(free, disk.free)
    if cleans:
        disk.clean()
    free[rank] = disk.free  # one's own is known best
    return free.index(max(free))


def run_epoch(epoch: int, rank: int, leader: int) -> None:
    plan = [f"plan {epoch}" if rank == leader else None]
    dist.broadcast_object_list(plan, src=leader)
    for _ in range(STEPS):
        dist.all_reduce(torch.randn(30))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    disk = Disk(rank)
    for epoch in range(EPOCHS):
        leader = elect(rank, disk, cleans=faulty and rank == 3 and epoch == 6)
        run_epoch(epoch, rank, leader)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
