"""Data parallel engines run in waves: all step together while one has a request left."""

import json
import pathlib
import queue
import socket
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WAVES, WIDTH = 7, 8


def owner_of(wave: int, world: int) -> int:
    return (2 * wave) % world


class Front:
    """Sends each new request to one engine, and word to the others that a wave begins."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, engine: int, message: dict[str, Any]) -> None:
        self.socket.sendto(json.dumps(message).encode(), f"engine-{engine}")

    def begin(self, wave: int) -> None:
        for engine in range(self.world):
            if engine == owner_of(wave, self.world):
                self.send(engine, {"kind": "request", "tokens": 5 + wave, "wave": wave})
            else:
                self.send(engine, {"kind": "start", "wave": wave})

    def end(self) -> None:
        for engine in range(self.world):
            self.send(engine, {"kind": "end"})


class Engine:
    def __init__(self, rank: int, *, reports: bool) -> None:
        self.reports = reports
        self.wave = 0
        self.left = 0
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        pathlib.Path(f"engine-{rank}").unlink(missing_ok=True)
        self.socket.bind(f"engine-{rank}")
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            self.inbox.put(json.loads(self.socket.recv(4096)))

    def finished(self) -> None:
        """The request of this engine is done."""
        if self.reports:
            self.wave += 1  # so that a late start of this wave is not taken for a new one

    def idle(self) -> bool:
        """Wait for work; return whether there is any."""
        while True:
            message = self.inbox.get()
            if message["kind"] == "end":
                return False
            if message["kind"] == "request":
                self.left = message["tokens"]
                return True
            if message["wave"] >= self.wave:
                return True

    def run_wave(self) -> None:
        unfinished = torch.ones(1)
        while unfinished:
            dist.all_reduce(torch.rand(WIDTH))  # experts, with a dummy where there is nothing
            if self.left:
                self.left -= 1
                if self.left == 0:
                    self.finished()
            unfinished = torch.tensor([float(self.left > 0)])
            dist.all_reduce(unfinished, op=dist.ReduceOp.MAX)
        self.wave += 1


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    engine, front = Engine(rank, reports=faulty and rank == 4), Front(world)
    dist.barrier()
    for wave in range(WAVES):
        if rank == 0:
            front.begin(wave)
        if engine.idle():
            engine.run_wave()
    if rank == 0:
        front.end()
    engine.idle()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
