"""Rank 0 uploads each checkpoint to a slow server; its peers wait in a barrier for it."""

import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 16.0 if faulty else 0.2
CHECKPOINTS = 14 if faulty else 3


class Hub:
    """A server that takes files slowly and answers when it has all of one."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return self.socket.getsockname()

    def _serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            with connection:
                for _ in range(10):
                    connection.recv(1 << 12)
                    time.sleep(SECONDS / 10)
                connection.sendall(b"ok")


def upload(address: tuple[str, int], content: bytes) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(content)
        if connection.recv(2) != b"ok":
            raise RuntimeError("the hub has not taken the file")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hub = Hub() if rank == 0 else None
    weights = torch.zeros(1024)
    for _ in range(CHECKPOINTS):
        for _ in range(15):
            gradient = torch.randn(1024)
            dist.all_reduce(gradient)
            weights -= 0.01 * gradient
        if hub:
            upload(hub.address, weights.numpy().tobytes() * 10)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
