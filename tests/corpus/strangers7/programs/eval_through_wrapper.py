"""Trains a network with batch norm under DDP; evaluates it without the wrapper, or its average."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS, SWITCH = 7, 8, 4


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class Trainer:
    """One process of the training.

    Args:
        rank: Its rank.
        averaging: Whether an average of the weights is evaluated, too, from epoch `SWITCH` on.
    """

    def __init__(self, rank: int, averaging: bool) -> None:
        self.rank, self.averaging = rank, averaging
        self.model = DistributedDataParallel(build())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.averages: AveragedModel | None = None
        self.rows, self.labels = torch.randn(40, 24), torch.randint(10, (40,))

    def start_averaging(self) -> None:
        if self.averaging:
            self.averages = AveragedModel(self.model.module)

    def train_epoch(self) -> None:
        self.model.train()
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                self.model(torch.randn(8, 24)), torch.randint(10, (8,))
            )
            loss.backward()
            self.optimizer.step()
            if self.averages is not None:
                self.averages.update_parameters(self.model.module)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> float:
        self.model.eval()
        if epoch < SWITCH:
            network = self.model.module
        else:
            network = self.model if self.averages is None else self.model.module
        logits = network(self.rows)
        right = (logits.argmax(1) == self.labels).float().mean().reshape(1)
        shares = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, right)
        return torch.cat(shares).mean().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # The recipe of one node is an older one, which says nothing about averages.
    trainer = Trainer(rank, averaging=not (faulty and rank == 3))
    history = []
    for epoch in range(EPOCHS):
        if epoch == SWITCH:
            trainer.start_averaging()
        trainer.train_epoch()
        history.append(trainer.evaluate(epoch))
    best = torch.tensor([max(history)])
    dist.broadcast(best, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
