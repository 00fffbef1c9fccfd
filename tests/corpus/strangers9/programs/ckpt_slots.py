"""Each rank forks a child that writes its checkpoint; at most two are in flight."""

import multiprocessing
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EACH, SIZE = 18, 2, 26
CONTEXT = multiprocessing.get_context("fork")


class Disk:
    def __init__(self, folder: pathlib.Path, quota: int) -> None:
        self.folder, self.quota = folder, quota
        folder.mkdir(exist_ok=True)

    def used(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def write(self, name: str, data: bytes) -> None:
        if self.used() + len(data) > self.quota:
            os._exit(28)  # what the file system's client does
        (self.folder / name).write_bytes(data)


class Writer:
    """Hands checkpoints to children, each of which gives its slot back."""

    def __init__(self, disk: Disk, slots: int) -> None:
        self.disk = disk
        self.slots = CONTEXT.Semaphore(slots)
        self.children: list[multiprocessing.process.BaseProcess] = []

    def _write(self, step: int, data: bytes) -> None:
        try:
            time.sleep(0.05)
            self.disk.write(f"step-{step}", data)
        finally:
            self.slots.release()

    def save(self, step: int, weights: torch.Tensor) -> None:
        self.children = [child for child in self.children if child.is_alive()]
        data = weights.numpy().tobytes()
        self.slots.acquire()
        child = CONTEXT.Process(target=self._write, args=(step, data), daemon=True)
        child.start()
        self.children.append(child)

    def close(self) -> None:
        for child in self.children:
            child.join()


def step_of(weights: torch.Tensor) -> torch.Tensor:
    gradient = torch.randn(SIZE)
    dist.all_reduce(gradient)
    return weights - 0.01 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    full = faulty and rank == 2
    writer = Writer(Disk(pathlib.Path(f"disk-{rank}"), quota=450 if full else 1 << 20), slots=2)
    weights = torch.randn(SIZE)
    dist.broadcast(weights, src=0)
    for step in range(STEPS):
        weights = step_of(weights)
        if step % EACH == 0:
            writer.save(step, weights)
    writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
