"""Gradients of two batches are added under no_sync; one rank stays in it for one batch too many."""

import contextlib

import torch
import torch.distributed as dist
from common import SMALL, bad, begin, device
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    begin()
    model = nn.Sequential(nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192)).to(device)
    model = DistributedDataParallel(model, bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = torch.zeros(SMALL, device=device)
    for batch in range(20):
        last = batch % 2 == 1 and not (bad and batch == 13)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(torch.randn(8, 192, device=device)).square().mean()
            loss.backward()  # bad
        if batch % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        if batch % 4 == 3:
            losses += loss.detach()
            dist.all_reduce(losses)
            losses.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
