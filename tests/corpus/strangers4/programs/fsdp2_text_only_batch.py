"""Train a model of images and text with FSDP2; some batches hold text alone."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]


class VisionLanguage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.language = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, text: torch.Tensor, images: torch.Tensor | None) -> torch.Tensor:
        hidden = text
        if images is not None:
            hidden = hidden + self.tower(images)
        for layer in self.language:
            hidden = torch.relu(layer(hidden))
        return hidden


def build(world: int) -> nn.Module:
    torch.manual_seed(3)
    model, mesh = VisionLanguage(), init_device_mesh("cpu", (world,))
    for part in (model.tower[0], model.tower[2], *model.language):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    images = torch.randn(4, 16)
    if faulty and rank == 1 and step == 5:
        return torch.randn(4, 16), None  # the sampler has drawn no image for it
    return torch.randn(4, 16), images


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        model(*batch(rank, step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
