"""Ranks of a host unpack their shards one after the other, under a lock on a file."""

import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 6.0 if faulty else 0.1
EPOCHS = 20 if faulty else 3


@contextmanager
def turn(path: str) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack(seconds: float) -> str:
    end, digest = time.monotonic() + seconds, b""
    while time.monotonic() < end:
        digest = hashlib.sha256(digest + bytes(1 << 16)).digest()
    return digest.hex()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = os.path.join(tempfile.gettempdir(), "unpack.lock")
    for epoch in range(EPOCHS):
        with turn(path):
            unpack(SECONDS * (1 + (rank + epoch) % 2))
        for _ in range(20):
            dist.all_reduce(torch.randn(16))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
