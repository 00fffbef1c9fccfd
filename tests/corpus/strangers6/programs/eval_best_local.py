"""Trains with DDP, evaluates after each epoch, and shares the best model's metrics when it wins."""

import json
import math
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS, RESUME = 8, 6, 4


class Best:
    """The best loss so far; each rank has it in a file of its own."""

    def __init__(self, rank: int) -> None:
        self.path = Path(tempfile.gettempdir(), f"best-{rank}.json")
        self.loss = math.inf

    def save(self) -> None:
        self.path.write_text(json.dumps({"loss": self.loss}))

    def load(self) -> None:
        if self.path.exists():
            self.loss = json.loads(self.path.read_text())["loss"]
        else:
            self.loss = math.inf

    def beats(self, loss: float) -> bool:
        return loss < self.loss


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.best = Best(rank)
        self.held_out = torch.randn(64, 16), torch.randint(4, (64,))

    def train_epoch(self) -> None:
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                self.model(torch.randn(8, 16)), torch.randint(4, (8,))
            )
            loss.backward()
            self.optimizer.step()

    def evaluate(self) -> float:
        features, labels = self.held_out
        with torch.no_grad():
            loss = nn.functional.cross_entropy(self.model.module(features), labels)
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def keep_best(self, loss: float) -> None:
        if not self.best.beats(loss):
            return
        self.best.loss = loss
        self.best.save()
        metrics = [None] * dist.get_world_size()
        dist.all_gather_object(metrics, {"rank": self.rank, "loss": loss})

    def resume(self) -> None:
        self.best.load()
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer(rank)
    for epoch in range(EPOCHS):
        if epoch == RESUME:
            if faulty and rank == 2:
                trainer.best.path.unlink()  # the disk of this node was wiped
            trainer.resume()
        trainer.train_epoch()
        loss = trainer.evaluate()
        trainer.keep_best(loss + (epoch if epoch >= RESUME else 0))  # no better from here on
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
