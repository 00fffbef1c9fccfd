"""Training restarts in generations; each meets anew, and one rank loads for long before it does."""

import os
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
LOADING = 75.0 if faulty else 1.0
GENERATIONS = 4


class Agent:
    """Keeps one store for all generations."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], port, self.world, is_master=self.rank == 0
        )

    def start(self, generation: int) -> None:
        store = dist.PrefixStore(f"generation/{generation}", self.store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world)


def load(seconds: float) -> int:
    """Unpack a checkpoint, record by record."""
    end, records = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        records += len(str(records) * 50)
    return records


def train(steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(torch.randn(32))
    dist.barrier()


def main() -> None:
    agent = Agent()
    for generation in range(GENERATIONS):
        if generation and agent.rank == 1 + generation % 3:
            load(LOADING)
        agent.start(generation)
        train(steps=20)
        dist.destroy_process_group()
    agent.store.add("ended", 1)
    while agent.rank == 0 and agent.store.add("ended", 0) < agent.world:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
