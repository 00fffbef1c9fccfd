"""A rank may wait for a debugger to attach before it does anything else."""

import os
import socket
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Debugger:
    """Listens at a port until a client comes, as debuggers do."""

    def __init__(self, wanted: str, rank: int) -> None:
        self.wanted = str(rank) in wanted.split(",")

    def wait_for_client(self) -> None:
        if not self.wanted:
            return
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection, _ = server.accept()
            connection.close()


def settings() -> dict[str, str]:
    """Return the settings of the last run, in which somebody looked at rank 1."""
    return {"DEBUG_RANKS": "1"} if faulty else {"DEBUG_RANKS": ""}


def main() -> None:
    debugger = Debugger(settings()["DEBUG_RANKS"], int(os.environ["RANK"]))
    debugger.wait_for_client()
    dist.init_process_group("gloo")
    for _ in range(10):
        dist.all_reduce(torch.randn(16))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
