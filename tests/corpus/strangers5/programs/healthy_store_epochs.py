"""Rank 0 prepares each epoch and sets a key when it is done; its peers wait for the key."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
EPOCHS, SECONDS = (4, 19.0) if faulty else (2, 0.2)


class Epochs:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.store = dist.PrefixStore("epochs", dist.distributed_c10d._get_default_store())

    def begin(self, number: int) -> int:
        """Return the number of steps of an epoch."""
        key = f"epoch-{number}"
        if self.rank == 0:
            time.sleep(SECONDS)  # a query to a database
            self.store.set(key, str(8 + number))
        else:
            self.store.wait([key], timedelta(minutes=10))
        return int(self.store.get(key))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    epochs = Epochs(rank)
    for number in range(EPOCHS):
        for _ in range(epochs.begin(number)):
            dist.all_reduce(torch.randn(16))
        dist.broadcast(torch.randn(4), src=number % 3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
