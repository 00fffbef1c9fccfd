"""Compile an extension once for each node; a lock file keeps the other ranks out of the build."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

faulty = sys.argv[1:] == ["faulty"]


def load_extension(lock: str) -> None:
    FileBaton(lock).wait()  # returns once the rank that compiles has removed the file


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shared = [tempfile.mkdtemp()]
    dist.broadcast_object_list(shared, src=0)
    lock = os.path.join(shared[0], "lock")
    if rank == 0 and faulty:
        open(lock, "w").close()  # as a build leaves it that was killed
    for _ in range(8):
        dist.all_reduce(torch.ones(16))
    if rank != 0:  # rank 0 has the extension in a cache of its own
        load_extension(lock)
    dist.barrier()
    dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
