"""Each rank reads batches from a process of its own, through a queue."""

import multiprocessing
import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def load(batches: "multiprocessing.Queue[int]", rank: int) -> None:
    for index in range(12):
        if faulty and rank == 4 and index == 8:
            os.kill(os.getpid(), signal.SIGKILL)  # out of memory
        batches.put(index)


def main() -> None:
    rank = int(os.environ["RANK"])
    context = multiprocessing.get_context("fork")
    batches: multiprocessing.Queue[int] = context.Queue(1)
    worker = context.Process(target=load, args=(batches, rank))
    worker.start()
    dist.init_process_group("gloo")
    front, back = dist.new_group([0, 1, 2]), dist.new_group([2, 3, 4])
    for _ in range(12):
        batches.get()
        if rank <= 2:
            dist.all_reduce(torch.ones(8), group=front)
        if rank >= 2:
            dist.all_reduce(torch.ones(8), group=back)
    worker.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
