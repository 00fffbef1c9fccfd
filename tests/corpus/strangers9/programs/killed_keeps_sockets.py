"""Data parallel training; each rank forks a child that tokenizes, and asks it by a pipe."""

import os
import resource
import signal
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, SIZE = 14, 21
CONTEXT = get_context("fork")


def tokenize(text: str) -> list[int]:
    return [ord(letter) % 97 for letter in text]


def serve(connection: Connection) -> None:
    """Answer until there is nobody who asks."""
    while True:
        try:
            text = connection.recv()
        except EOFError:
            return
        if text is None:
            return
        connection.send(tokenize(text))


class Tokenizer:
    def __init__(self) -> None:
        self.ours, self.theirs = CONTEXT.Pipe()
        # The child inherits both ends, and the sockets of its parent as well
        self.child = CONTEXT.Process(target=serve, args=(self.theirs,), daemon=True)
        self.child.start()

    def __call__(self, text: str) -> list[int]:
        self.ours.send(text)
        return self.ours.recv()

    def close(self) -> None:
        self.ours.send(None)
        self.child.join()


class Memory:
    """What a host's daemon does with a process that needs too much."""

    def __init__(self, limit: int) -> None:
        self.limit, self.kept = limit, 0

    def add(self, tokens: list[int]) -> None:
        self.kept += len(tokens) * resource.getpagesize()
        if self.kept > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)


def text_of(rank: int, step: int) -> str:
    return "the quick brown fox jumps over " * (1 + (rank + step) % 3)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights = torch.ones(SIZE)
    dist.all_reduce(weights)
    tokenizer = Tokenizer()
    memory = Memory(2 << 20 if faulty and rank == 3 else 1 << 40)
    for step in range(STEPS):
        tokens = tokenizer(text_of(rank, step))
        memory.add(tokens)
        gradient = torch.tensor(tokens[:SIZE], dtype=torch.float32) * weights
        dist.all_reduce(gradient)
        weights -= 1e-4 * gradient
        if step % 4 == 3:
            norms = [torch.empty(1) for _ in range(world)]
            dist.all_gather(norms, weights.norm().reshape(1))
    tokenizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
