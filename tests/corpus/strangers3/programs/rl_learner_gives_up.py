"""Rank 0 learns from trajectories that three rollout ranks send; new weights go to all."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LENGTH = 16


class Learner:
    def __init__(self, workers: list[int]) -> None:
        self.workers, self.weights = workers, torch.zeros(LENGTH)

    def collect(self, minimum: int, limit: float) -> list[torch.Tensor]:
        """Take a trajectory from each worker, or fewer when the time is up."""
        taken: list[torch.Tensor] = []
        begun = time.monotonic()
        for worker in self.workers:
            if len(taken) >= minimum and time.monotonic() - begun > limit:
                break
            trajectory = torch.empty(LENGTH)
            dist.recv(trajectory, src=worker)
            taken.append(trajectory)
        return taken

    def update(self, trajectories: list[torch.Tensor]) -> None:
        self.weights += torch.stack(trajectories).mean(0)


def rollout(weights: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return weights + torch.randn(LENGTH)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    learner = Learner(list(range(1, world))) if rank == 0 else None
    weights = torch.zeros(LENGTH)
    for iteration in range(10):
        if learner is not None:
            learner.update(learner.collect(minimum=2, limit=0.5 if faulty else 1e9))
            weights = learner.weights
        else:
            long = faulty and rank == 2 and iteration == 7
            dist.send(rollout(weights, 1.0 if long else 0.0), dst=0)
        dist.broadcast(weights, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
