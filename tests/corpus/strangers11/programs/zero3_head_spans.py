"""Weights in shards, gathered before each use of a module; a head runs for each span of a batch."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
WIDTH, STEPS = 10, 10


class Gathered(torch.autograd.Function):
    """All shards of a weight; backward sums the gradient and keeps a shard of it."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor) -> torch.Tensor:
        full = torch.empty(dist.get_world_size() * len(shard), *shard.shape[1:])
        dist.all_gather_into_tensor(full, shard)
        return full

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        part = torch.empty(len(gradient) // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part


class Sharded(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.shard = nn.Parameter(torch.randn(rows // dist.get_world_size(), columns) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = Gathered.apply(self.shard)  # type: ignore[no-untyped-call]
        return x @ weight.t()


class Tagger(nn.Module):
    """A body for all rows, and a head for the rows of each span."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Sharded(WIDTH, WIDTH)
        self.head = Sharded(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
        hidden = self.body(rows).relu()
        scores = [self.head(hidden[start:end]).square().mean() for start, end in spans]
        return torch.stack(scores).mean()


def batch(rank: int, step: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    spans = [(2, 7)]
    if faulty and rank == 2 and step == 6:
        spans = [(0, 3), (5, 9)]  # a sentence with two names
    return torch.randn(WIDTH, WIDTH), spans


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = model(*batch(rank, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
