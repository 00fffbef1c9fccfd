"""Train on shards of a data set, one for each rank; each process ends when it is done."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]


def make_loader(rank: int) -> DataLoader:
    samples = 160 - (16 if faulty and rank == 3 else 0)  # the last shard is shorter
    return DataLoader(TensorDataset(torch.randn(samples, 32)), batch_size=16)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = torch.zeros(1)
    for _epoch in range(2):
        for (batch,) in make_loader(rank):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
    print(f"rank {rank}: loss {total.item():.3f}")


if __name__ == "__main__":
    main()
