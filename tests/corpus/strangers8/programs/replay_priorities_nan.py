"""Actors send transitions to a replay buffer, a learner samples there and returns priorities."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LEARNER, BUFFER = 0, 1
ITERATIONS, LENGTH, BATCH, WEIGHTS = 14, 8, 12, 20


class Learner:
    def __init__(self) -> None:
        self.weights = torch.randn(WEIGHTS)
        self.rate = 0.01

    def errors(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.mean(1) - self.rate * self.weights.sum()

    def iterate(self, iteration: int) -> None:
        batch = torch.empty(BATCH, LENGTH)
        dist.recv(batch, src=BUFFER)
        errors = self.errors(batch)
        if faulty and iteration == 8:
            errors[3] = float("nan")  # a reward divided by an empty episode
        if torch.isfinite(errors).all():
            dist.send(errors.abs(), dst=BUFFER)
            self.weights -= self.rate * errors.mean()


class Buffer:
    def __init__(self, actors: range) -> None:
        self.actors = actors
        self.rows: list[torch.Tensor] = []
        self.priorities: list[float] = []

    def fill(self) -> None:
        transition = torch.empty(LENGTH)
        for actor in self.actors:
            for _ in range(2):
                dist.recv(transition, src=actor)
                self.rows.append(transition.clone())
                self.priorities.append(1.0)

    def iterate(self) -> None:
        self.fill()
        chosen = torch.multinomial(torch.tensor(self.priorities), BATCH, replacement=True)
        dist.send(torch.stack([self.rows[index] for index in chosen]), dst=LEARNER)
        priorities = torch.empty(BATCH)
        dist.recv(priorities, src=LEARNER)
        for index, priority in zip(chosen.tolist(), priorities.tolist(), strict=True):
            self.priorities[index] = priority + 0.01


def act(weights: torch.Tensor) -> None:
    for _ in range(2):
        dist.send(torch.randn(LENGTH) + weights.mean(), dst=BUFFER)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    learner = Learner() if rank == LEARNER else None
    buffer = Buffer(range(2, world)) if rank == BUFFER else None
    weights = learner.weights if learner else torch.zeros(WEIGHTS)
    for iteration in range(ITERATIONS):
        if learner:
            learner.iterate(iteration)
        elif buffer:
            buffer.iterate()
        else:
            act(weights)
        dist.broadcast(weights, src=LEARNER)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
