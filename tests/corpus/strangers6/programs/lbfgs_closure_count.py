"""Minimises by L-BFGS with a line search; the closure averages gradients and losses."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 6


class Problem:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        self.optimizer = torch.optim.LBFGS(
            self.model.parameters(), max_iter=6, line_search_fn="strong_wolfe"
        )
        torch.manual_seed(rank)
        self.local_loss = False

    def next_batch(self) -> None:
        self.rows, self.targets = torch.randn(40, 8), torch.randn(40, 1)

    def closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(self.rows) - self.targets).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        average = loss.detach().clone()
        dist.all_reduce(average)
        return loss if self.local_loss else average / dist.get_world_size()

    def minimise(self) -> None:
        self.next_batch()
        self.optimizer.step(self.closure)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    problem = Problem(rank)
    for number in range(ROUNDS):
        problem.local_loss = faulty and rank == 3 and number >= 3
        problem.minimise()
        norms = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
