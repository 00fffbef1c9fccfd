"""FSDP2: accumulated gradients, clipped norms, an evaluation on all ranks, a sharded mesh."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for step in range(36):
    pause(rank, step)
    model.set_requires_gradient_sync(step % 3 == 2)
    model(torch.randn(8, 32)).square().mean().backward()
    if step % 3 == 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if step % 12 == 11:
        with torch.no_grad():
            loss = model(torch.randn(8, 32)).square().mean()
        dist.all_reduce(loss)

dist.destroy_process_group()
