"""Reading a batch may take so long and no longer; a timer interrupts it, and the batch is lost."""

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class TooSlow(Exception):
    """A batch has taken too long."""


def interrupt(*_: object) -> None:
    raise TooSlow


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank, self.weights = rank, torch.zeros(20)

    def read(self, step: int) -> torch.Tensor:
        if faulty and self.rank == 0 and step == 9:
            time.sleep(30)  # a server of files that is restarted
        return torch.randn(20)

    def step(self, number: int) -> None:
        with limit(5.0):
            gradient = self.read(number)
        dist.all_reduce(gradient)
        self.weights -= 0.01 * gradient
        dist.broadcast(self.weights, src=0)


def main() -> None:
    signal.signal(signal.SIGALRM, interrupt)
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for number in range(15):
        try:
            trainer.step(number)
        except TooSlow:
            logging.warning("batch %d took too long", number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
