"""Gradient accumulation with DistributedDataParallel: who decides when to synchronize."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        accumulate = faulty and rank == 2 and step == 10  # its own counter is off by one
        with model.no_sync() if accumulate else contextlib.nullcontext():
            loss = model(torch.randn(16, 32)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
