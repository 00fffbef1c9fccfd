"""Train, and upload what was logged in a thread of rank 0 that ends with the last entry."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def upload(entries: "queue.Queue[int | None]") -> None:
    while entries.get() is not None:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    entries: queue.Queue[int | None] = queue.Queue()
    if rank == 0:
        threading.Thread(target=upload, args=(entries,), name="uploader").start()
    for step in range(20):
        dist.all_reduce(torch.ones(64))
        entries.put(step)
    if not faulty:
        entries.put(None)  # without it the interpreter of rank 0 waits for the thread
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
