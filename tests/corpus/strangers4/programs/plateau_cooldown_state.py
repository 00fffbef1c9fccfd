"""The learning rate is lowered on a plateau of the mean loss of all ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class ReduceOnPlateau:
    """Halves the rate when the mean loss stays the same, then rests for a while.

    While it rests nobody needs the mean.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.best, self.bad, self.rest = rate, float("inf"), 0, 0

    def step(self, loss: torch.Tensor) -> None:
        if self.rest:
            self.rest -= 1
            return
        mean = loss.clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        if mean.item() < self.best:
            self.best, self.bad = mean.item(), 0
            return
        self.bad += 1
        if self.bad == 3:
            self.rate, self.bad, self.rest = self.rate / 2, 0, 4


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weights = torch.zeros(20)
        self.schedule = ReduceOnPlateau(0.1)

    def epoch(self, number: int) -> None:
        for _ in range(3):
            dist.broadcast(self.weights, src=0)
            self.weights -= self.schedule.rate * torch.randn(20)
        self.schedule.step(torch.tensor([max(1.0, 5.0 - number)]))

    def recover(self) -> None:
        """Take up the schedule of the last good checkpoint of this rank."""
        self.schedule.rest = 1


def main() -> None:
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for epoch in range(20):
        if faulty and trainer.rank == 4 and epoch == 14:
            trainer.recover()  # its last checkpoint is of an epoch in which it rested
        trainer.epoch(epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
