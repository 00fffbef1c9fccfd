"""Early stopping: leave the loop when the validation loss has not improved."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]


def average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def should_stop(epoch: int, rank: int) -> bool:
    bad = torch.tensor([float(epoch >= 12 and (rank == 2 or epoch >= 15))])
    if not faulty:
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bool(bad.item())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(20):
        model(torch.randn(16, 32)).square().mean().backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if should_stop(epoch, rank):
            break
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
