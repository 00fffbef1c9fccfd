"""Rank 0 answers requests over a socket and has nothing else to do; its peers train for long."""

import selectors
import socket
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
STEPS, PAUSE = (6, 14.0) if faulty else (3, 0.2)


class Server:
    def __init__(self, clients: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.selector = selectors.DefaultSelector()
        self.left = clients

    def run(self) -> None:
        self.selector.register(self.listener, selectors.EVENT_READ)
        while self.left:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    self.selector.register(connection, selectors.EVENT_READ)
                    continue
                text = key.fileobj.recv(16)
                if text:
                    key.fileobj.sendall(b"ok")
                else:
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.left -= 1


def train(rank: int, port: int, group: dist.ProcessGroup) -> None:
    with socket.create_connection(("127.0.0.1", port)) as service:
        for step in range(STEPS):
            for _ in range(20):
                dist.all_reduce(torch.randn(16), group=group)
            service.sendall(b"step")
            service.recv(2)
            if rank == 1 + step % 3:
                time.sleep(PAUSE)  # a device that measures


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([1, 2, 3])
    server = Server(3) if rank == 0 else None
    port = torch.tensor([server.listener.getsockname()[1] if server else 0])
    dist.broadcast(port, src=0)
    if server:
        server.run()
    else:
        train(rank, int(port), group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
