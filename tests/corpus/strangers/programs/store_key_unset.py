"""Rank 0 publishes the place of each checkpoint in the store; its peers wait for the key."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    for step in range(16):
        for _ in range(2):
            dist.all_reduce(torch.ones(32))
        if step % 4 == 3:
            key = f"checkpoint/{step}"
            if rank == 0:
                if not (faulty and step == 11):  # nothing new to save
                    store.set(key, f"/data/{step}")
            else:
                store.wait([key], timedelta(minutes=30))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
