"""Rank 0 fetches the data, the others wait for it in a barrier."""

import socket
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def fetch(address: tuple[str, int], size: int) -> bytes:
    with socket.create_connection(address) as connection:
        return connection.recv(size)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.ones(64)
    for _ in range(5):
        dist.all_reduce(tensor)
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))  # in the place of a server that hangs
        if faulty:
            fetch(server.getsockname(), 1024)
    dist.barrier()
    dist.all_reduce(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
