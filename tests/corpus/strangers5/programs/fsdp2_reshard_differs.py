"""FSDP2, where blocks are kept whole after the forward pass as far as there is memory."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]
BLOCK = 400


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(24, 24) for _ in range(5))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = torch.relu(block(rows))
        return rows


def keep_whole(model: Model, budget: int) -> None:
    """Keep the first blocks whole that fit into the budget."""
    for number, block in enumerate(model.blocks):
        block.set_reshard_after_forward((number + 1) * BLOCK > budget)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model, mesh = Model(), init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        if step % 3 == 0:
            budget = 1000 if faulty and rank == 0 and step == 6 else 500
            keep_whole(model, budget)
        model(torch.randn(4, 24)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
