"""FSDP2 over three replicas of two shards: replicas speak at the end of a window of samples."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

faulty = sys.argv[1:] == ["faulty"]
STEPS, MICRO, ROWS, WIDTH, BLOCKS = 7, 3, 8, 8, 2


class Window:
    """The samples of a step, and how many of them have been seen."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.size = MICRO * ROWS
        self.seen = 0

    def microbatches(self, step: int) -> list[torch.Tensor]:
        self.seen = 0
        sizes = [ROWS] * MICRO
        if faulty and self.rank == 3 and step == 4:
            sizes[1] -= 1  # a sample that could not be read
        return [torch.randn(size, WIDTH) for size in sizes]

    def complete(self, rows: torch.Tensor) -> bool:
        self.seen += len(rows)
        return self.seen >= self.size


def build() -> nn.Sequential:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 2))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_step(model: nn.Module, window: Window, step: int) -> torch.Tensor:
    assert isinstance(model, FSDPModule)
    total = torch.zeros(1)
    for rows in window.microbatches(step):
        model.set_requires_all_reduce(window.complete(rows))
        loss = model(rows).square().mean()
        loss.backward()
        total += loss.detach()
    return total / MICRO


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    torch.manual_seed(rank)
    window = Window(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = train_step(model, window, step)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
