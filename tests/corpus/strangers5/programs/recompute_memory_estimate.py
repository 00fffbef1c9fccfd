"""Tensor parallel layers, some of which are computed again in the backward pass to save memory."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

faulty = sys.argv[1:] == ["faulty"]


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        dist.all_reduce(rows)
        return rows

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Reduce.apply(self.linear(rows)))


class Stack(nn.Module):
    """Computes as many layers again as the memory that is free does not hold."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, rows: torch.Tensor, free: int) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number < free:
                rows = layer(rows)
                continue
            rows = checkpoint(layer, rows, use_reentrant=False)
        return rows


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Stack(5)
    for step in range(12):
        free = 2
        if faulty and rank == 1 and step == 7:
            free = 3  # the allocator has just given some memory back
        model(torch.randn(4, 16, requires_grad=True), free).sum().backward()
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        norms = [torch.empty(1) for _ in range(world)]
        dist.all_gather(norms, norm.reshape(1))
        model.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
