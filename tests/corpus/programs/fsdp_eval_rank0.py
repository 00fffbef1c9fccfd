"""Train a model that is sharded by fully_shard, and evaluate it from time to time."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]


def evaluate(model: nn.Module) -> float:
    with torch.no_grad():
        return model(torch.randn(64, 32)).square().mean().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5 and (rank == 0 or not faulty):
            evaluate(model)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
