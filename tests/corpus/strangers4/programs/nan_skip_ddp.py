"""Train with DistributedDataParallel; a batch whose loss is not a number is passed over."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(rows))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = torch.randn(8, 12), torch.randint(0, 4, (8,))
    if faulty and rank == 3 and step == 6:
        rows[2, 5] = float("inf")  # a broken record of this shard
    return rows, labels


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(14):
        rows, labels = batch(rank, step)
        loss = nn.functional.cross_entropy(model(rows), labels)
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
