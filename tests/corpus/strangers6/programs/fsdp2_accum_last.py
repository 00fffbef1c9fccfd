"""A sharded model accumulates gradients and reduces them with the last batch of its loader."""

import sys
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]
BATCH, ACCUMULATE, STEPS = 4, 4, 8


def loader_of(rank: int, step: int) -> DataLoader:
    rows = BATCH * ACCUMULATE
    if faulty and rank == 3 and step == 5:
        rows += 1  # one sample more than its peers have, and so a batch more
    return DataLoader(TensorDataset(torch.randn(rows, 24)), batch_size=BATCH)


class Trainer:
    def __init__(self) -> None:
        blocks = [nn.Linear(24, 24) for _ in range(3)]
        for block in blocks:
            fully_shard(block)
        self.model = fully_shard(nn.Sequential(*blocks))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, loader: DataLoader) -> None:
        self.optimizer.zero_grad()
        for index, (rows,) in enumerate(islice(loader, ACCUMULATE)):
            self.model.set_requires_gradient_sync(index + 1 == len(loader))
            self.model(rows).square().mean().backward()
        self.optimizer.step()

    def log(self, loss: torch.Tensor) -> None:
        losses = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss.reshape(1))


def main() -> None:
    dist.init_process_group("gloo")
    trainer = Trainer()
    for step in range(STEPS):
        trainer.step(loader_of(dist.get_rank(), step))
        trainer.log(torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
