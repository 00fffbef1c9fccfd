"""Distributed checkpoints of a sharded model: saved, saved in the background, loaded."""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
background = dist.new_group(backend="gloo")
folder = [tempfile.mkdtemp() if rank == 0 else ""]
dist.broadcast_object_list(folder)
pending = None

for step in range(24):
    pause(rank, step)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 3:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": step}
        dcp.save(state, checkpoint_id=f"{folder[0]}/{step}")
    if step % 8 == 5:
        if pending is not None:
            pending.result()
        weights, _ = get_state_dict(model, optimizer)
        pending = dcp.async_save(
            {"model": weights}, checkpoint_id=f"{folder[0]}/{step}", process_group=background
        )

assert pending is not None
pending.result()
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments, "step": 0}
dcp.load(state, checkpoint_id=f"{folder[0]}/19")
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
assert state["step"] == 19
dist.barrier()
if rank == 0:
    shutil.rmtree(folder[0])
dist.destroy_process_group()
