"""Train adapters under FSDP2, and gather them one after the other into each checkpoint."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.output = (nn.Linear(12, 12, bias=False) for _ in range(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.output(torch.tanh(self.query(rows)) * self.value(rows))


def collect(model: nn.Module, targets: tuple[str, ...]) -> dict[str, torch.Tensor]:
    whole = {}
    for name, parameter in model.named_parameters():
        if any(target in name for target in targets):
            whole[name] = parameter.full_tensor().detach().clone()
    return whole


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model, mesh = nn.Sequential(*(Attention() for _ in range(3))), init_device_mesh("cpu", (world,))
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(9):
        model(torch.randn(4, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            # Rank 3 has a configuration of last week for its second checkpoint and after.
            old = faulty and rank == 3 and step >= 5
            saved = collect(model, ("query", "value") if old else ("query", "value", "output"))
            size = torch.tensor([float(sum(each.numel() for each in saved.values()))])
            dist.broadcast(size, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
