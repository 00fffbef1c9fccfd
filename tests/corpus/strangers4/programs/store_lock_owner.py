"""One rank at a time updates the table of shards, under a lock in the store."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

faulty = sys.argv[1:] == ["faulty"]


class Table:
    """Shards by name, in the store."""

    def __init__(self, rank: int, store: Store) -> None:
        self.rank, self.store = rank, store

    @contextmanager
    def lock(self) -> Iterator[None]:
        me = f"rank {self.rank}"
        while self.store.compare_set("lock", "", me).decode() != me:
            time.sleep(0.01)
        yield
        self.store.set("lock", "")

    def add(self, name: str, size: int) -> None:
        with self.lock():
            if size <= 0:
                raise ValueError(f"{name} is empty")
            self.store.set(name, str(size))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = PrefixStore("table", _get_default_store())
    store.set_timeout(timedelta(hours=1))
    if rank == 0:
        store.set("lock", "")
    dist.barrier()
    table = Table(rank, store)
    for epoch in range(6):
        size = 0 if faulty and rank == 2 and epoch == 3 else 10
        time.sleep(0.02 if rank == 2 else 0.2)
        try:
            table.add(f"{epoch}-{rank}", size)
        except ValueError as error:
            logging.warning("left out: %s", error)
        for _ in range(4):
            dist.all_reduce(torch.randn(12))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
