"""Ranks pull tables from each other's services, which first ask the caller what it has."""

import json
import pathlib
import socket
import socketserver
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, ENTRIES = 8, 6


def call(rank: int, request: dict[str, Any]) -> Any:
    """Ask the service of a rank and return its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"service-{rank}")
        connection.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(connection.makefile().readline())


class Table:
    """Versions of the entries that a rank holds; used by its loop and by its service."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lock = threading.Lock()
        self.versions = dict.fromkeys(map(str, range(ENTRIES)), 0)

    def snapshot(self) -> dict[str, int]:
        with self.lock:
            return dict(self.versions)

    def newer_than(self, caller: int) -> dict[str, int]:
        theirs = call(caller, {"ask": "versions"})
        return {key: value for key, value in self.snapshot().items() if value > theirs[key]}

    def pull(self, peer: int) -> None:
        news = call(peer, {"ask": "news", "caller": self.rank})
        with self.lock:
            self.versions.update(news)

    def rebuild(self, peer: int) -> None:
        """Take all entries of a peer anew, with nobody reading between."""
        with self.lock:
            self.versions = dict.fromkeys(self.versions, -1)
            self.versions.update(call(peer, {"ask": "news", "caller": self.rank}))

    def bump(self, step: int) -> None:
        with self.lock:
            self.versions[str((self.rank + step) % ENTRIES)] += 1


class Handler(socketserver.StreamRequestHandler):
    table: Table

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        if request["ask"] == "versions":
            answer = self.table.snapshot()
        else:
            answer = self.table.newer_than(request["caller"])
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Service(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 16


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table = Handler.table = Table(rank)
    pathlib.Path(f"service-{rank}").unlink(missing_ok=True)
    service = Service(f"service-{rank}", Handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    dist.barrier()
    for step in range(STEPS):
        table.bump(step)
        peer = (rank + 1 + step % (world - 1)) % world
        if step % 2 == 0:
            table.pull(peer)
        elif faulty and (rank, step) == (3, 5):  # its table did not pass a check
            table.rebuild(peer)
        dist.all_reduce(torch.rand(ENTRIES))
    dist.barrier()
    service.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
