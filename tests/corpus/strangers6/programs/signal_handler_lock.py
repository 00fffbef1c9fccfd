"""Ranks keep a journal of their steps, which SIGUSR1 has written out."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS = 15


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.lines: list[str] = []
        signal.signal(signal.SIGUSR1, self.on_signal)

    def add(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)
            self.compact()

    def compact(self) -> None:
        while len(self.lines) > 5:
            time.sleep(0.02)  # writes slowly
            self.lines.pop(0)

    def flush(self) -> None:
        with self.lock:
            self.path.write_text("\n".join(self.lines))

    def on_signal(self, *_: object) -> None:
        self.flush()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    journal = Journal(Path(tempfile.gettempdir(), f"journal-{rank}"))
    for step in range(STEPS):
        dist.all_reduce(torch.randn(18))
        signal.raise_signal(signal.SIGUSR1)  # as a supervisor does
        if faulty and rank == 1 and step == 9:
            journal.lines *= 9
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        journal.add(f"step {step}")
        dist.broadcast(torch.randn(4), src=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
