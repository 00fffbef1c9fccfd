"""Tensor x data parallel: gradients of norms are summed over the tensor parallel pair as well."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, WIDTH, TENSOR = 9, 3, 14, 2


def make_groups(rank: int, world: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    tensor = data = None
    for first in range(0, world, TENSOR):
        group = dist.new_group(list(range(first, first + TENSOR)))
        tensor = group if rank // TENSOR == first // TENSOR else tensor
    for column in range(TENSOR):
        group = dist.new_group(list(range(column, world, TENSOR)))
        data = group if rank % TENSOR == column else data
    assert tensor is not None
    assert data is not None
    return tensor, data


def mark(parameter: nn.Parameter) -> nn.Parameter:
    parameter.sequence_parallel = True
    return parameter


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = mark(nn.Parameter(torch.ones(WIDTH)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.linear(rows)) * self.scale


def replace_outliers(model: nn.Module, limit: float) -> None:
    """Start the scales again that have run away."""
    for layer in model:
        if layer.scale.abs().max() > limit:
            layer.scale = nn.Parameter(layer.scale.detach().clamp(-limit, limit))


def reduce_gradients(
    model: nn.Module, tensor: dist.ProcessGroup, data: dist.ProcessGroup
) -> torch.Tensor:
    for parameter in model.parameters():
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=tensor)
    squares = torch.zeros(1)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=data)
        squares += parameter.grad.square().sum()
    return squares


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor, data = make_groups(rank, world)
    torch.manual_seed(rank)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    for step in range(STEPS):
        model.zero_grad()
        model(torch.randn(6, WIDTH)).square().sum().backward()
        squares = reduce_gradients(model, tensor, data)
        dist.all_reduce(squares)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad / squares.sqrt()
            if faulty and (rank, step) == (6, 5):
                model[1].scale[3] += 4.0  # a flipped bit
        replace_outliers(model, limit=3.0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
