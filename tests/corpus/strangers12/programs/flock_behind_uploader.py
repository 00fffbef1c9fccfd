"""Two ranks append their optimizer shards to one archive, and a child uploads what was added."""

import fcntl
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 20, 4, 32
OWNERS, MIRROR = (2, 3), 1
ARCHIVE = pathlib.Path("optimizer.archive")

UPLOAD = "import sys; sys.exit(0 if sys.argv[1] != 'expired' else len(sys.stdin.readline()))"


class Archive:
    """One file for all owners: whoever holds its lock may append and upload."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.file = ARCHIVE.open("ab")

    def token(self, step: int) -> str:
        return "expired" if faulty and (self.rank, step) == (3, 11) else "valid"

    def upload(self, step: int) -> None:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", UPLOAD, self.token(step)], stdin=subprocess.PIPE
        )
        child.wait()

    def append(self, step: int, shard: torch.Tensor) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.file.write(shard.numpy().tobytes())
            self.file.flush()
            if self.rank == OWNERS[-1]:
                self.upload(step)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)


def save(rank: int, step: int, archive: Archive | None, shard: torch.Tensor) -> None:
    if archive is not None:
        if rank == OWNERS[0]:
            time.sleep(0.4)  # its shard is the larger one
        archive.append(step, shard)
    if rank == OWNERS[0]:
        dist.send(shard, dst=MIRROR)
    elif rank == MIRROR:
        dist.recv(torch.empty_like(shard), src=OWNERS[0])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    archive = Archive(rank) if rank in OWNERS else None
    weights, momentum = torch.zeros(WIDTH), torch.zeros(WIDTH)
    for step in range(STEPS):
        gradient = torch.randn(WIDTH)
        dist.all_reduce(gradient)
        momentum = 0.9 * momentum + gradient
        weights -= 0.01 * momentum
        if step % EVERY == EVERY - 1:
            save(rank, step, archive, momentum)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
