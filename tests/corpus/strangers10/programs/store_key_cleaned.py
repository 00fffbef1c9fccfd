"""Rank 0 puts a plan for each epoch into the store, and takes old plans away again."""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS = 8, 3


class Plans:
    """What each rank is to read in an epoch, by way of the store."""

    def __init__(self, store: dist.Store, rank: int, keep: int) -> None:
        self.store, self.rank, self.keep = store, rank, keep

    def name(self, epoch: int) -> str:
        return f"plan/{epoch}"

    def publish(self, epoch: int, plan: dict[str, list[int]]) -> None:
        self.store.set(self.name(epoch), json.dumps(plan))
        old = epoch - self.keep
        if old >= 0:
            self.store.delete_key(self.name(old))

    def read(self, epoch: int) -> list[int]:
        plan = json.loads(self.store.get(self.name(epoch)))
        return plan[str(self.rank)]


class Shards:
    """Files of an epoch, whose index is read before the plan is asked for."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def open(self, epoch: int) -> None:
        if self.rank == 3 and epoch == 5:
            time.sleep(1.8)  # an index that has to be built first
        elif self.rank == 0:
            time.sleep(0.4)


def plan_of(world: int, epoch: int) -> dict[str, list[int]]:
    return {str(rank): [rank + epoch, rank + world, rank + 2 * world] for rank in range(world)}


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(hours=1))
    plans, shards = Plans(store, rank, keep=1 if faulty else 2), Shards(rank)
    if rank == 0:
        plans.publish(0, plan_of(world, 0))
    for epoch in range(EPOCHS):
        shards.open(epoch)
        total = torch.tensor([float(sum(plans.read(epoch)))])
        if rank == 0:  # in good time for the next epoch
            plans.publish(epoch + 1, plan_of(world, epoch + 1))
        for _ in range(STEPS):
            dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
