"""A lock keeps the main thread and a logger from calling torch.distributed at the same time."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 24, 3, 16


class Logger:
    """Averages what it is given over all ranks, with a group of its own."""

    def __init__(self, group: dist.ProcessGroup, lock: threading.Lock) -> None:
        self.group, self.lock = group, lock
        self.values: queue.Queue[float] = queue.Queue()
        self.begun, self.logged = threading.Event(), threading.Event()
        threading.Thread(target=self.run, name="logger", daemon=True).start()

    def run(self) -> None:
        while True:
            mean = torch.tensor([self.values.get()])
            with self.lock:
                self.begun.set()
                dist.all_reduce(mean, group=self.group)
            self.logged.set()

    def put(self, value: float) -> None:
        self.begun.clear()
        self.logged.clear()
        self.values.put(value)


class Trainer:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.lock = rank, threading.Lock()
        self.logger = Logger(dist.new_group(list(range(world))), self.lock)
        self.weights = torch.zeros(WIDTH)

    def reduce(self, gradient: torch.Tensor, value: float | None) -> None:
        with self.lock:
            if value is not None:
                self.logger.put(value)
            dist.all_reduce(gradient)

    def step(self, step: int) -> None:
        gradient, loss = torch.randn(WIDTH), 1.0 / (1 + step)
        due = step % EVERY == EVERY - 1
        spike = faulty and (self.rank, step) == (2, 14)
        if spike:  # is logged at once
            self.logger.put(loss)
            self.logger.begun.wait()
        self.reduce(gradient, loss if due and not spike else None)
        if due:
            self.logger.logged.wait()
        self.weights -= 0.01 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    trainer = Trainer(rank, world)
    for step in range(STEPS):
        trainer.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
