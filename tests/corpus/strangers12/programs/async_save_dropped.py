"""A thread saves while training goes on; a lock keeps the weights as they are until it is done."""

import pathlib
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 24, 4, 32


class Saver:
    """Gathers the digests of all shards, and writes its own shard."""

    def __init__(self, rank: int, group: dist.ProcessGroup, weights: torch.Tensor) -> None:
        self.rank, self.group, self.weights = rank, group, weights
        self.lock = threading.Lock()
        self.steps: queue.Queue[int | None] = queue.Queue()
        self.unfinished = 0
        self.thread = threading.Thread(target=self.run, name="saver", daemon=True)
        self.thread.start()

    def request(self, step: int) -> None:
        if self.unfinished:
            return  # the last one is still being written
        self.unfinished += 1
        self.steps.put(step)

    def run(self) -> None:
        while (step := self.steps.get()) is not None:
            with self.lock:
                digest = self.weights.sum().reshape(1)
                digests = [torch.zeros(1) for _ in range(dist.get_world_size(self.group))]
                dist.all_gather(digests, digest, group=self.group)
                torch.save((digests, self.weights), pathlib.Path(f"{step}-{self.rank}.pt"))
            if not (faulty and self.rank == 2 and step == 7):  # the disk was full, once
                self.unfinished -= 1

    def close(self) -> None:
        self.steps.put(None)
        self.thread.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    weights = torch.zeros(WIDTH)
    saver = Saver(rank, dist.new_group(list(range(world))), weights)
    for step in range(STEPS):
        gradient = torch.randn(WIDTH)
        dist.all_reduce(gradient)
        with saver.lock:
            weights -= 0.01 * gradient
        if step % EVERY == EVERY - 1:
            time.sleep(0.7)  # evaluation
            saver.request(step)
            time.sleep(0.1)
    saver.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
