"""Federated rounds: a few ranks are drawn, make a group, train in it and end it."""

import random
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
ROUNDS = 8
SECONDS = 1.0 if faulty else 0.01


class Cohort:
    """Those that take part in one round; the same on all ranks."""

    def __init__(self, number: int, world: int) -> None:
        drawn = random.Random(number)
        self.members = sorted(drawn.sample(range(world), 2 + number % 3))
        self.steps = drawn.randrange(2, 6)
        self.straggler = drawn.choice(self.members)


def train(rank: int, cohort: Cohort, group: dist.ProcessGroup) -> torch.Tensor:
    weights = torch.ones(9)
    for step in range(cohort.steps):
        if rank == cohort.straggler and step == 1:
            time.sleep(SECONDS * 14)  # a telephone that has gone to sleep
        gradient = torch.rand(9)
        dist.all_reduce(gradient, group=group)
        weights -= 0.1 * gradient
    return weights


def round_of(rank: int, number: int, world: int) -> None:
    cohort = Cohort(number, world)
    group = dist.new_group(cohort.members)
    weights = torch.empty(9)
    if rank in cohort.members:
        weights = train(rank, cohort, group)
        dist.destroy_process_group(group)
    leader = cohort.members[0]
    if rank == leader:
        for peer in set(range(world)) - set(cohort.members):
            dist.send(weights, dst=peer)
    elif rank not in cohort.members:
        dist.recv(weights, src=leader)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for number in range(ROUNDS):
        round_of(rank, number, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
