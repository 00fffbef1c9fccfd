"""Tensor parallel within FSDP2 on a mesh of two by two, with sequence parallel norms."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.foreign.programs.pace import pause


class Block(nn.Module):
    """A norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(rows))))


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(Block(), Block())
plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
for block in model:
    parallelize_module(block, mesh["tp"], plan)
    fully_shard(block, mesh=mesh["dp"])
parallelize_module(
    model, mesh["tp"], PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
)
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(24):
    pause(rank, step)
    model(torch.randn(2, 8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

dist.destroy_process_group()
