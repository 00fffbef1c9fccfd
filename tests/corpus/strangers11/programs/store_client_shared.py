"""Ranks report to a store that they live; a thread of each waits there for commands."""

import os
import queue
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, QUIET, EVERY = 24, 4, 8


def connect() -> dist.TCPStore:
    """Return a connection to the store of the job."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(hours=2))


class Listener(threading.Thread):
    """Waits for one command after the other."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.inbox: queue.Queue[str] = queue.Queue()

    def run(self) -> None:
        number = 0
        while True:
            command = self.store.get(f"command/{number}").decode()
            self.inbox.put(command)
            if command == "end":
                return
            number += 1


class Member:
    def __init__(self, rank: int, connections: int) -> None:
        self.rank = rank
        self.store = connect()
        self.listener = Listener(connect() if connections > 1 else self.store)
        self.issued = 0

    def report(self, step: int) -> None:
        self.store.set(f"alive/{self.rank}", str(step))

    def command(self, name: str) -> None:
        if self.rank == 0:
            self.store.set(f"command/{self.issued}", name)
            self.issued += 1

    def step(self, step: int) -> None:
        self.report(step)
        if step % EVERY == EVERY - 1:
            self.command("rate")
        rows = torch.rand(6)
        dist.all_reduce(rows)
        while not self.listener.inbox.empty():
            self.listener.inbox.get()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    few = faulty and rank == 3  # its host is short of connections
    member = Member(rank, connections=1 if few else 2)
    for step in range(STEPS):
        if step == QUIET:
            member.listener.start()
        member.step(step)
    member.command("end")
    member.listener.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
