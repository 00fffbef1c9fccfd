"""Train with a normalization whose statistics are those of all ranks; previews now and then."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]
BRIGHT = 50.0


class SharedNorm(nn.Module):
    """Normalizes by the mean of all ranks in training, and by its own in evaluation."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mean = rows.mean(0)
        if self.training:
            parts = [torch.empty_like(mean) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, mean.detach())
            mean = torch.stack(parts).mean(0)
        return rows - mean


def preview(model: nn.Module, sample: torch.Tensor) -> None:
    model.eval()
    with torch.no_grad():
        picture = model(sample)
    if picture.abs().max() > BRIGHT:
        return  # nothing that one could look at
    model.train()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(8, 16), SharedNorm(), nn.ReLU(), nn.Linear(16, 8), SharedNorm())
    model = DistributedDataParallel(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(16):
        loss = model(torch.randn(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            sample = torch.randn(2, 8)
            if faulty and rank == 3 and step == 9:
                sample *= 1e4  # a broken picture of this shard
            preview(model, sample)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
