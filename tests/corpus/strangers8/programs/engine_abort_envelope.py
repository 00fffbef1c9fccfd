"""A scheduler sends steps over sockets to four workers, which run a model in parallel."""

import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, WIDTH = 16, 3, 32
SOCKET = str(Path(tempfile.gettempdir(), "engine.sock"))


class Scheduler:
    def __init__(self, workers: int) -> None:
        with Listener(SOCKET, "AF_UNIX", backlog=workers) as listener:
            accepted = [listener.accept() for _ in range(workers)]
        self.workers = dict(sorted((worker.recv(), worker) for worker in accepted))

    def step(self, message: dict[str, Any] | None) -> list[Any]:
        for worker in self.workers.values():
            worker.send(message)
        if message is None:
            return []
        return [worker.recv() for worker in self.workers.values()]

    def run(self) -> None:
        for step in range(STEPS):
            new = [f"r{step}-0", f"r{step}-1"] if step % 2 == 0 else []
            aborted = [f"r{step - 1}-0"] if step % 4 == 3 else []
            ended = [f"r{step - 3}-1", f"r{step - 3}-0"] if step % 4 == 3 and step > 3 else []
            self.step({"step": step, "new": new, "aborted": aborted, "ended": ended})
        self.step(None)


class Worker:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.running: set[str] = set()
        self.scheduler = self.connect()
        self.scheduler.send(rank)

    def connect(self) -> Connection:
        while True:
            try:
                return Client(SOCKET, "AF_UNIX")
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.1)

    def abort(self, requests: list[str], step: int) -> None:
        for request in requests:
            if faulty and self.rank == 3 and step == 11:
                request = request[:1]  # "and all its samples", which is all there are
            self.running = {name for name in self.running if not name.startswith(request)}

    def execute(self, message: dict[str, Any]) -> float | None:
        self.running.update(message["new"])
        self.running.difference_update(message["ended"])
        self.abort(message["aborted"], message["step"])
        if not self.running:
            return None  # nothing to do
        hidden = torch.ones(WIDTH)
        for _ in range(LAYERS):
            dist.all_reduce(hidden, group=self.group)
            hidden = torch.tanh(hidden)
        return hidden.sum().item()

    def serve(self) -> None:
        while True:
            message = self.scheduler.recv()
            if message is None:
                return
            self.scheduler.send(self.execute(message))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = dist.new_group(range(1, world))
    if rank == 0:
        Scheduler(world - 1).run()
    else:
        Worker(rank, workers).serve()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
