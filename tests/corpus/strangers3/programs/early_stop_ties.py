"""Train until the best accuracy has not improved for two epochs, then test."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ACCURACY = (0.50, 0.61, 0.66, 0.66, 0.71, 0.71, 0.70, 0.70, 0.69, 0.69)


class EarlyStopping:
    def __init__(self, patience: int, *, ties_count: bool) -> None:
        self.patience, self.ties_count = patience, ties_count
        self.best, self.bad = 0.0, 0

    def stop(self, accuracy: float) -> bool:
        better = accuracy >= self.best if self.ties_count else accuracy > self.best
        if better:
            self.best, self.bad = accuracy, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def train(batches: int) -> None:
    for _ in range(batches):
        gradient = torch.randn(32)
        dist.all_reduce(gradient)


def validate(epoch: int, world: int) -> float:
    correct = torch.tensor([ACCURACY[min(epoch, len(ACCURACY) - 1)]], dtype=torch.float64)
    dist.all_reduce(correct)
    return round(correct.item() / world, 6)


def test(rank: int, world: int) -> None:
    parts = [torch.empty(8) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.randn(8), parts, dst=0)
    report = torch.zeros(2)
    dist.broadcast(report, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stopping = EarlyStopping(patience=2, ties_count=faulty and rank == 5)
    for epoch in range(40):
        train(batches=5)
        if stopping.stop(validate(epoch, world)):
            break
    test(rank, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
