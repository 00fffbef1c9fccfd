"""Rank 0 hands out work through a file in memory, in which each reader marks what it has read."""

import logging
import mmap
import os
import pickle
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SIZE = 4096
STEPS = 25


class Channel:
    """A block with one flag for the writer and one for each reader."""

    def __init__(self, path: str, readers: int) -> None:
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        self.readers = readers

    def write(self, message: Any) -> None:
        while self.memory[0] and sum(self.memory[1 : self.readers + 1]) < self.readers:
            time.sleep(0.001)
        self.memory[1 : self.readers + 1] = bytes(self.readers)
        content = pickle.dumps(message)
        self.memory[16 : 16 + len(content)] = content
        self.memory[0] = message["step"] + 1

    def read(self, reader: int, last: int) -> Any:
        """Wait for a message that is newer than the last."""
        while self.memory[0] <= last:
            time.sleep(0.001)
        message = pickle.loads(self.memory[16:])
        self.memory[reader] = 1
        return message


def run(rank: int, message: dict[str, Any]) -> None:
    rows = torch.randn(message["tokens"], 8)
    if faulty and rank == 2 and message["step"] == 17:
        rows = rows[:, torch.tensor([9])]  # an index from an adapter of another size
    dist.all_reduce(rows)
    dist.all_reduce(rows)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path = os.path.join(tempfile.gettempdir(), "channel")
    if rank == 0:
        with open(path, "wb") as file:
            file.write(bytes(SIZE))
    dist.barrier()
    channel = Channel(path, world - 1)
    for step in range(STEPS):
        message = {"step": step, "tokens": 1 + step % 4}
        if rank == 0:
            channel.write(message)
        else:
            message = channel.read(rank, last=step)
        try:
            run(rank, message)
        except IndexError:
            logging.exception("step %d", step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
