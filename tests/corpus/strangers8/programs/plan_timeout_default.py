"""Rank 0 publishes in how many microbatches a step is split; its peers read that in the store."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, DEFAULT = 11, 2


class Plans:
    def __init__(self, rank: int, patience: float) -> None:
        self.rank = rank
        self.patience = datetime.timedelta(seconds=patience)
        self.store = dist.distributed_c10d._get_default_store()

    def publish(self, step: int) -> int:
        if step == 6:
            time.sleep(4)  # measures how much memory is free
        micros = 3 if step % 2 == 0 else 4
        self.store.set(f"micros/{step}", str(micros))
        return micros

    def read(self, step: int) -> int:
        key = f"micros/{step}"
        try:
            self.store.wait([key], self.patience)
        except dist.DistStoreError:
            print(f"rank {self.rank}: no plan of step {step}, takes {DEFAULT}", flush=True)
            return DEFAULT
        return int(self.store.get(key))

    def micros(self, step: int) -> int:
        return self.publish(step) if self.rank == 0 else self.read(step)


def train(step: int, micros: int, world: int) -> None:
    total = torch.zeros(20)
    for _ in range(micros):
        gradient = torch.randn(20)
        dist.all_reduce(gradient)
        total += gradient / micros
    norms = [torch.empty(1) for _ in range(world)]
    dist.all_gather(norms, torch.rand(1))
    if step % 3 == 2:
        dist.broadcast(total, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    patience = 1.5 if faulty and rank == 5 else 600.0  # another release on that node
    plans = Plans(rank, patience)
    dist.barrier()
    for step in range(STEPS):
        train(step, plans.micros(step), world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
