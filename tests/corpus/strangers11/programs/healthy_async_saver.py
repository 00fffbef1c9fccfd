"""Checkpoints are written by a thread, with a group of its own, while training goes on."""

import hashlib
import pathlib
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
STEPS, SAVE_EACH, WIDTH = 150, 50, 32
UPLOADS = ((1, 2, 13, 1), (12, 1, 1, 3), (2, 11, 1, 16))


class AsyncSaver:
    """Takes a copy and hands it to its thread, which meets those of its peers."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.group = dist.new_group()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self.last: Future[list[str]] | None = None
        self.cancelled = threading.Event()

    def _upload(self, shard: torch.Tensor, seconds: float) -> str:
        path = pathlib.Path(f"shard-{self.rank}.pt")
        torch.save(shard, path)
        self.cancelled.wait(seconds)  # for the storage to answer
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _save(self, number: int, shard: torch.Tensor) -> list[str]:
        digest = self._upload(shard, UPLOADS[number][self.rank] * SECONDS)
        digests: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(digests, digest, group=self.group)
        dist.barrier(group=self.group)
        return digests

    def save(self, number: int, shard: torch.Tensor) -> None:
        self.drain()
        self.last = self.pool.submit(self._save, number, shard.clone())

    def drain(self) -> None:
        if self.last is not None:
            self.last.result()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    saver = AsyncSaver(rank)
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        gradient = torch.randn(WIDTH)
        time.sleep(0.1 * SECONDS)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        if step % SAVE_EACH == SAVE_EACH - 1:
            saver.save(step // SAVE_EACH, weights)
    saver.drain()
    saver.pool.shutdown()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
