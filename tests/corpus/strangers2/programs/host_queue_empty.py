"""Rank 2 reads the shards of its host and hands one to rank 3 over a socket."""

import socket
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def connect(rank: int) -> socket.socket | None:
    if rank == 2:
        server = socket.create_server(("127.0.0.1", 0))
        dist.send(torch.tensor([server.getsockname()[1]]), dst=3)
        return server.accept()[0]
    if rank == 3:
        port = torch.zeros(1, dtype=torch.int64)
        dist.recv(port, src=2)
        return socket.create_connection(("127.0.0.1", int(port)))
    return None


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    queue = connect(rank)
    for step in range(12):
        if rank == 2 and queue and not (faulty and step == 7):  # the shard was empty
            queue.sendall(bytes(8))
        if rank == 3 and queue:
            queue.recv(8)
        dist.all_reduce(torch.randn(32))
        dist.all_reduce(torch.randn(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
