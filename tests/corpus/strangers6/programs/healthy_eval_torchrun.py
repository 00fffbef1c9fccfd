"""Trains with DDP under torchrun; evaluations take each rank from 10 to 25 s, without a call."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
EPOCHS, UNIT = (6, 1.0) if faulty else (2, 0.02)
SECONDS = [10, 25, 14, 20]


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(25):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def evaluate(network: nn.Module, seconds: float) -> tuple[float, int]:
    """Go through documents of unequal length; the files of a long one are read slowly."""
    ends = time.monotonic() + seconds
    total, count = 0.0, 0
    while time.monotonic() < ends:
        total += network(torch.randn(64, 20)).square().mean().item()
        count += 1
        if count % 20 == 0:
            time.sleep(0.1 * UNIT)
    return total, count


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        train_epoch(model, optimizer)
        total, count = evaluate(network, UNIT * SECONDS[(rank + epoch) % world])
        sums = torch.tensor([total, float(count)])
        dist.all_reduce(sums)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
