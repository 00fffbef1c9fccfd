"""Trainers wait while the rollout ranks generate with tools that answer over the network."""

import select
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 240 if faulty else 1


def answer(server: socket.socket) -> None:
    """The tool: answers each question after a while."""
    while question := server.recv(64):
        time.sleep(0.3)
        server.sendall(question)


def generate(seconds: float) -> int:
    client, server = socket.socketpair()
    threading.Thread(target=answer, args=(server,), daemon=True).start()
    end, tokens = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        client.sendall(b"call")
        while not select.select([client], [], [], 0.1)[0]:
            pass
        client.recv(64)
        tokens += int(torch.randn(64, 64).matmul(torch.randn(64, 64)).numel())
    return tokens


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rollouts = dist.new_group([2, 3])
    for iteration in range(4):
        dist.broadcast(torch.ones(64), src=0)
        if rank >= 2:
            generate(SECONDS if iteration == 2 else 0.5)
            dist.all_reduce(torch.ones(1), group=rollouts)
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
