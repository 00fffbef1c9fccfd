"""Some ranks rewrite two shared files, each under a lock of its own, while the others wait."""

import fcntl
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WRITERS = {1: ("tokens", "counts"), 3: ("tokens", "counts")}
if faulty:
    WRITERS[3] = ("counts", "tokens")


def rewrite(names: tuple[str, str], text: str) -> None:
    paths = [os.path.join(tempfile.gettempdir(), name) for name in names]
    with open(paths[0], "a+") as first, open(paths[1], "a+") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        first.write(text)
        time.sleep(0.3)
        fcntl.flock(second, fcntl.LOCK_EX)
        second.write(text)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for epoch in range(5):
        for _ in range(6):
            dist.all_reduce(torch.randn(24))
        if epoch >= 2 and rank in WRITERS:
            rewrite(WRITERS[rank], f"{epoch}\n")
        dist.broadcast(torch.randn(4), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
