"""Rank 2 polls a folder for files that a process of its own writes, and hands them to all."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
FEEDER = 2
PAUSES = [2.0, 16.0, 13.0, 21.0, 14.0, 18.0] if faulty else [0.05, 0.3, 0.05]
WRITER = """
import os, sys, time
folder, *pauses = sys.argv[1:]
for number, pause in enumerate(map(float, pauses)):
    time.sleep(pause)
    with open(f"{folder}/{number}.part", "w") as file:
        file.write(" ".join(str(value) for value in range(50)))
    os.rename(f"{folder}/{number}.part", f"{folder}/{number}.txt")
"""


class Feed:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="feed-"))
        command = [sys.executable, "-c", WRITER, str(self.folder), *map(str, PAUSES)]
        self.writer = subprocess.Popen(command)

    def read(self, number: int) -> list[float]:
        path = self.folder / f"{number}.txt"
        while not path.exists():
            time.sleep(0.25)
        return [float(word) for word in path.read_text().split()]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    feed = Feed() if rank == FEEDER else None
    for number in range(len(PAUSES)):
        rows = torch.tensor(feed.read(number)) if feed else torch.empty(50)
        dist.broadcast(rows, src=FEEDER)
        for _ in range(20):
            dist.all_reduce(rows / 10)
    if feed:
        feed.writer.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
