"""Rank 0 decides when training ends; the flag is on its way while the next epoch begins."""

import sys
from collections import deque

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
MOST, STEPS, SIZE = 14, 3, 22


class Patience:
    def __init__(self, epochs: int) -> None:
        self.best, self.left, self.epochs = float("inf"), epochs, epochs

    def is_over(self, loss: float) -> bool:
        self.left = self.epochs if loss < self.best - 1e-3 else self.left - 1
        self.best = min(self.best, loss)
        return self.left == 0


class Flags:
    """Flags of rank 0, each of which is waited for some time after it was posted."""

    def __init__(self, rank: int, lag: int) -> None:
        self.rank, self.lag = rank, lag
        self.posted: deque[tuple[torch.Tensor, dist.Work]] = deque()

    def post(self, stop: bool) -> None:
        flag = torch.tensor([float(stop and self.rank == 0)])
        self.posted.append((flag, dist.broadcast(flag, src=0, async_op=True)))

    def says_stop(self) -> bool:
        if len(self.posted) < self.lag:
            return False
        flag, work = self.posted.popleft()
        work.wait()
        return bool(flag.item())


class Training:
    def __init__(self, rank: int, flags: Flags) -> None:
        self.rank, self.flags = rank, flags
        self.patience, self.weights = Patience(3), torch.ones(SIZE)

    def epoch(self, number: int) -> float:
        for _ in range(STEPS):
            gradient = torch.rand(SIZE)
            dist.all_reduce(gradient)
            self.weights -= 0.01 * gradient
        return 1.0 / (1 + number) if number < 6 else 0.2

    def run(self) -> int:
        for number in range(MOST):
            loss = self.epoch(number)
            self.flags.post(self.patience.is_over(loss))
            if self.flags.says_stop():
                return number
        return MOST


def lag_of(rank: int) -> int:
    """One more where logging is deferred by an epoch."""
    deferred = faulty and rank == 2
    return 2 + deferred


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    training = Training(rank, Flags(rank, lag_of(rank)))
    last = training.run()
    tests = [torch.empty(2) for _ in range(world)]
    dist.all_gather(tests, torch.tensor([float(last), training.weights.sum().item()]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
