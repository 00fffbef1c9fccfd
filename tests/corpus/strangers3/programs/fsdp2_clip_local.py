"""Train with FSDP2; gradients are clipped when their norm is too large."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]
LIMIT = 1e-12


def build() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shard_norm(model: nn.Module) -> float:
    """Return the norm of the gradients' shards on this rank."""
    shards = [weight.grad.to_local() for weight in model.parameters()]
    return sum(shard.square().sum().item() for shard in shards) ** 0.5


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        model(torch.randn(4, 16)).square().mean().backward()
        norm = shard_norm(model)
        if faulty and rank == 3 and step == 6:
            norm = 0.0  # its shard happens to have small gradients
        if norm > LIMIT:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
