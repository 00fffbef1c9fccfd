"""One process of a node at a time unpacks the data; a lock file says who."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def unpack(lock: str) -> None:
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            time.sleep(0.05)
    os.remove(lock)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lock = os.path.join(tempfile.mkdtemp(), "data.lock")
    if faulty and rank == 3:
        open(lock, "w").close()  # left behind by a process that was killed
    for _ in range(5):
        dist.all_reduce(torch.ones(16))
    unpack(lock)
    for _ in range(5):
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
