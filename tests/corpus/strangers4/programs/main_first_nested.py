"""The main process prepares the data first, its peers read what it has left in the cache."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
CACHE = os.path.join(tempfile.gettempdir(), "cache")


@contextmanager
def main_process_first() -> Iterator[None]:
    """Let rank 0 run the body before all other ranks."""
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def cached(name: str) -> bool:
    return os.path.exists(os.path.join(CACHE, name))


def store(name: str) -> None:
    with open(os.path.join(CACHE, name), "w") as file:
        file.write("x" * 100)


def tokenizer() -> None:
    if not cached("tokenizer"):
        with main_process_first():
            store("tokenizer")


def dataset() -> None:
    with main_process_first():
        if not cached("dataset"):
            tokenizer()
            store("dataset")


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        os.makedirs(CACHE, exist_ok=True)
        if not faulty:
            store("tokenizer")  # it came with the image
    dist.barrier()
    dataset()
    for _ in range(10):
        dist.all_reduce(torch.randn(32))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
