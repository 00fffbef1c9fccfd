"""Threads save in the background; the last manifest is exchanged while the interpreters end."""

import pathlib
import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 14, 4, 16
INDEX, WRITER = 1, 3


class Writer:
    """Writes what it is given, and sends the number of files to the index at the end."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.jobs: queue.Queue[tuple[int, torch.Tensor] | None] = queue.Queue()
        self.pending = 0
        self.thread = threading.Thread(target=self.run, name="writer")
        self.thread.start()

    def save(self, step: int, weights: torch.Tensor) -> None:
        self.jobs.put((step, weights.clone()))
        self.pending += 1

    def flush(self) -> None:
        if faulty:
            self.pending = 0

    def close(self) -> None:
        if self.pending:
            self.jobs.put(None)
        self.thread.join()

    def run(self) -> None:
        files = 0
        while (job := self.jobs.get()) is not None:
            step, weights = job
            torch.save(weights, pathlib.Path(f"weights-{step}.pt"))
            files += 1
        dist.send(torch.tensor([files]), dst=INDEX, group=self.group)


class Index:
    """Receives the number of files, which the main thread does not wait for."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.thread = threading.Thread(target=self.run, name="index")
        self.thread.start()

    def run(self) -> None:
        files = torch.zeros(1, dtype=torch.int64)
        dist.recv(files, src=WRITER, group=self.group)
        pathlib.Path("manifest.txt").write_text(f"{int(files)} files\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saving = dist.new_group([INDEX, WRITER])
    writer = Writer(saving) if rank == WRITER else None
    index = Index(saving) if rank == INDEX else None
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        gradient = torch.randn(WIDTH)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        if writer is not None and step % EVERY == EVERY - 1:
            writer.save(step, weights)
    dist.barrier()
    if writer is not None:
        writer.flush()
        writer.close()
    if index is not None:
        print("the index is written in the background")


if __name__ == "__main__":
    main()
