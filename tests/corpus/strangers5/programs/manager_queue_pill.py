"""Rank 0 serves a queue of work for each other rank; a None ends the work of an epoch."""

import os
import sys
import tempfile
import threading
import time
from multiprocessing.managers import BaseManager
from queue import Queue

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
QUEUES = {rank: Queue() for rank in range(1, 4)}


class Manager(BaseManager):
    pass


def address() -> str:
    return os.path.join(tempfile.gettempdir(), "work.socket")


def serve() -> None:
    Manager.register("queue", callable=QUEUES.__getitem__)
    server = Manager(address(), authkey=b"work").get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()


def connect(rank: int) -> Queue:
    Manager.register("queue")
    while not os.path.exists(address()):
        time.sleep(0.01)
    manager = Manager(address(), authkey=b"work")
    manager.connect()
    return manager.queue(rank)


def hand_out(epoch: int) -> None:
    for number in range(12 + epoch):
        QUEUES[1 + number % 3].put(number)
    for rank, queue in QUEUES.items():
        if faulty and epoch == 3 and rank == 2:
            continue  # its worker was said to be ready already
        queue.put(None)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        serve()
    queue = connect(rank) if rank else None
    for epoch in range(6):
        done = torch.zeros(1)
        if queue is None:
            hand_out(epoch)
        else:
            while queue.get() is not None:
                done += 1
        dist.all_reduce(done)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
