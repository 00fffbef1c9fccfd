"""Fetch each shard from a server, again and again until that works."""

import socket
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def fetch(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.3)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = server.getsockname()[1]
    for step in range(12):
        if faulty and rank == 0 and step == 7:
            server.close()
        fetch(port)
        dist.all_reduce(torch.randn(32))
        dist.broadcast(torch.ones(4), src=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
