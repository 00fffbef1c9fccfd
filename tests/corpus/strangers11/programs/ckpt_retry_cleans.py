"""Checkpoints in shards: rank 0 waits for all of them, writes an index and renames the folder."""

import errno
import json
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EACH, WIDTH, ATTEMPTS = 12, 3, 16, 4


class Folder:
    """A checkpoint that is being written; it gets its name when it is complete."""

    def __init__(self, step: int) -> None:
        self.final = pathlib.Path(f"step-{step}")
        self.path = self.final.with_suffix(".incomplete")

    def clean(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()

    def write(self, rank: int, shard: torch.Tensor) -> None:
        part = self.path / f"shard-{rank}.tmp"
        torch.save(shard, part)
        part.rename(part.with_suffix(".pt"))

    def wait_for_shards(self, world: int) -> list[str]:
        while True:
            names = sorted(path.name for path in self.path.glob("shard-*.pt"))
            if len(names) == world:
                return names
            time.sleep(0.05)

    def commit(self, names: list[str]) -> None:
        (self.path / "index.json").write_text(json.dumps(names))
        self.path.rename(self.final)


class Checkpointer:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.quota = 2 if faulty else 10

    def finish(self, folder: Folder, names: list[str]) -> None:
        self.quota -= 1
        if self.quota == 0:  # until the administrators raise it, a moment later
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        folder.commit(names)

    def attempt(self, folder: Folder, shard: torch.Tensor) -> None:
        folder.write(self.rank, shard)
        if self.rank == 0:
            self.finish(folder, folder.wait_for_shards(self.world))

    def save(self, step: int, shard: torch.Tensor) -> None:
        folder = Folder(step)
        if self.rank == 0:
            folder.clean()
        dist.barrier()
        for _ in range(ATTEMPTS):
            try:
                self.attempt(folder, shard)
                break
            except OSError as error:
                print(f"rank {self.rank}: {error}, once more", flush=True)
                folder.clean()
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    shard = torch.zeros(WIDTH)
    checkpointer = Checkpointer(rank, world)
    for step in range(STEPS):
        gradient = torch.randn(WIDTH * world)
        part = torch.empty(WIDTH)
        dist.reduce_scatter_tensor(part, gradient)
        shard -= 0.01 * part
        if step % EACH == EACH - 1:
            checkpointer.save(step, shard)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
