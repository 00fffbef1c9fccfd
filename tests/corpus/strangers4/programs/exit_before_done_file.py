"""Each rank writes its shard of a checkpoint and a mark beside it; all look for all marks."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Checkpoint:
    def __init__(self, step: int, rank: int, world: int) -> None:
        self.folder = os.path.join(tempfile.gettempdir(), f"checkpoint-{step}")
        self.rank, self.world = rank, world
        os.makedirs(self.folder, exist_ok=True)

    def path(self, rank: int, suffix: str) -> str:
        return os.path.join(self.folder, f"shard-{rank}.{suffix}")

    def write(self, weights: torch.Tensor, quota: int) -> None:
        content = weights.numpy().tobytes()
        if len(content) > quota:
            os._exit(28)  # as the library does that writes the file, when the disk is full
        with open(self.path(self.rank, "bin"), "wb") as file:
            file.write(content)
        with open(self.path(self.rank, "done"), "w"):
            pass

    def wait(self) -> None:
        for rank in range(self.world):
            while not os.path.exists(self.path(rank, "done")):
                time.sleep(0.05)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights = torch.zeros(128)
    for step in range(16):
        gradient = torch.randn(128)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient / world
        if step % 4 == 3:
            dist.barrier()
            time.sleep(0.2)  # until the last message of the barrier has gone out everywhere
            checkpoint = Checkpoint(step, rank, world)
            quota = 100 if faulty and rank == 3 and step == 11 else 1 << 20
            checkpoint.write(weights, quota)
            checkpoint.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
