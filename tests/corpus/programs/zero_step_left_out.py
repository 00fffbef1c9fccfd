"""ZeroRedundancyOptimizer, and steps left out where gradients are infinite."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.01
    )
    for step in range(10):
        model(torch.randn(16, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        overflow = faulty and rank == 2 and step == 6  # each rank checks for itself
        if not overflow:
            optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
