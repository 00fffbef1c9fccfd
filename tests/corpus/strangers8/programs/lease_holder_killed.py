"""Ranks take turns in making the plan of a round, which the others wait for in the store."""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, STEPS = 14, 3


class Planner:
    """Makes plans; the rank that holds the lease of a round publishes it for all."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.store = dist.distributed_c10d._get_default_store()

    def holds_lease(self, number: int) -> bool:
        return number % self.world == self.rank

    def make(self, number: int) -> dict[str, list[int]]:
        documents = [(number * 37 + index * 11) % 97 for index in range(200)]
        if faulty and number == 9:
            os.kill(os.getpid(), signal.SIGKILL)  # out of memory
        plan: dict[str, list[int]] = {str(rank): [] for rank in range(self.world)}
        for document in sorted(documents, reverse=True):
            smallest = min(plan, key=lambda name: sum(plan[name]))
            plan[smallest].append(document)
        return plan

    def get(self, number: int) -> list[int]:
        key = f"plan/{number}"
        if self.holds_lease(number):
            self.store.set(key, json.dumps(self.make(number)))
        plan = json.loads(self.store.get(key))
        return plan[str(self.rank)]


def train(documents: list[int], weights: torch.Tensor) -> None:
    for step in range(STEPS):
        gradient = torch.tensor(documents[step::STEPS], dtype=torch.float32).mean() * weights
        dist.all_reduce(gradient)
        weights -= 1e-4 * gradient
    dist.broadcast(weights, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    planner = Planner(rank, world)
    weights = torch.randn(50)
    for number in range(ROUNDS):
        documents = planner.get(number)
        train(documents, weights)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
