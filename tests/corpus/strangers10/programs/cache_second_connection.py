"""Each rank has a process that serves samples from a cache, over a socket."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, SAMPLES, WIDTH = 6, 5, 9
CONTEXT = multiprocessing.get_context("fork")


def serve(listener: socket.socket) -> None:
    """Serve one client after the other, until each closes its connection."""
    parent = os.getppid()
    listener.settimeout(2.0)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                key = int(line)
                lines.write(" ".join(str((key * 7 + place) % 10) for place in range(WIDTH)) + "\n")
                lines.flush()


class Cache:
    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=8)
        self.address = listener.getsockname()
        self.process = CONTEXT.Process(target=serve, args=(listener,), daemon=True)
        self.process.start()
        listener.close()

    def read(self, keys: list[int]) -> Iterator[torch.Tensor]:
        """Yield samples over one connection, which ends with the last of them."""
        with (
            socket.create_connection(self.address) as connection,
            connection.makefile("rw") as lines,
        ):
            for key in keys:
                lines.write(f"{key}\n")
                lines.flush()
                yield torch.tensor([float(one) for one in lines.readline().split()])


class Trainer:
    def __init__(self, rank: int, cache: Cache) -> None:
        self.rank, self.cache = rank, cache
        self.weights = torch.zeros(WIDTH)

    def step(self, sample: torch.Tensor) -> None:
        gradient = sample - self.weights
        if float(gradient.abs().max()) > 25.0:
            gradient = gradient - self.baseline()
        dist.all_reduce(gradient)
        self.weights += 0.01 * gradient

    def baseline(self) -> torch.Tensor:
        """Look at a few samples that are known to be good."""
        return torch.stack(list(self.cache.read([0, 1, 2]))).mean(dim=0)

    def epoch(self, number: int) -> None:
        keys = [self.rank + number * SAMPLES + place for place in range(SAMPLES)]
        for place, sample in enumerate(self.cache.read(keys)):
            if faulty and (self.rank, number, place) == (4, 3, 2):
                sample = sample * 8  # a scan of another camera
            self.step(sample)


def main() -> None:
    cache: Any = Cache()
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), cache)
    for number in range(EPOCHS):
        trainer.epoch(number)
        dist.broadcast(trainer.weights, src=1)
    dist.barrier()
    dist.destroy_process_group()
    cache.process.terminate()


if __name__ == "__main__":
    main()
