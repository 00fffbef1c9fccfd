"""Rank 2 fetches an index from a server that is overloaded, and waits longer after each try."""

import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
EPOCHS, FIRST = (4, 1.0) if faulty else (2, 0.02)


class Overloaded:
    """A server that turns away the first tries of each epoch."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        number = 0
        while True:
            connection, _ = self.listener.accept()
            number += 1
            with connection:
                connection.sendall(b"ok" if number % 5 == 0 else b"no")


def fetch(address: tuple[str, int]) -> int:
    pause = FIRST
    for attempt in range(10):
        with socket.create_connection(address) as connection:
            if connection.recv(2) == b"ok":
                return attempt
        time.sleep(pause)
        pause = min(2.4 * pause, 16.0)
    raise RuntimeError("the server is gone")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = Overloaded() if rank == 2 else None
    for _ in range(EPOCHS):
        tries = torch.tensor([fetch(server.listener.getsockname()) if server else 0])
        dist.broadcast(tries, src=2)
        for _ in range(25):
            dist.all_reduce(torch.randn(12))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
