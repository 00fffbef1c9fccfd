"""A data loader whose data set keeps a cache behind a lock."""

import sys
import threading

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

faulty = sys.argv[1:] == ["faulty"]


class Cached(Dataset):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        with self.lock:
            return torch.full((8,), float(index))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Cached()
    for epoch in range(2):
        if faulty and rank == 1 and epoch == 1:
            data.lock.acquire()  # as a thread that fills the cache does, when the worker is forked
        for batch in DataLoader(data, batch_size=8, num_workers=1):
            dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
