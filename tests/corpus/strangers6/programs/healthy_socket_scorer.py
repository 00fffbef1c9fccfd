"""Rank 1 has a judge score the samples of all: a server of its own that takes its time."""

import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
DELAYS = [1.0, 15.0, 15.0, 18.0, 12.0, 24.0] if faulty else [0.1, 0.4, 0.1]
SERVER = """
import socketserver, sys, time
delays = iter([float(delay) for delay in sys.argv[1:]])
class Judge(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            time.sleep(next(delays))
            self.wfile.write(b"%d\\n" % len(line))
with socketserver.TCPServer(("127.0.0.1", 0), Judge) as server:
    print(server.server_address[1], flush=True)
    server.handle_request()
"""


class Judge:
    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVER, *map(str, DELAYS)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout
        port = int(self.server.stdout.readline())
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.answers = self.connection.makefile()

    def score(self, text: str) -> float:
        self.connection.sendall(f"{text}\n".encode())
        return float(self.answers.readline())

    def close(self) -> None:
        self.answers.close()
        self.connection.close()
        self.server.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    judge = Judge() if rank == 1 else None
    for number in range(len(DELAYS)):
        for _ in range(12):
            dist.all_reduce(torch.randn(10))
        time.sleep(0.05)
        samples = [""] * world if rank == 1 else None
        dist.gather_object(f"sample {number} of rank {rank}", samples, dst=1)
        scores = torch.zeros(1)
        if judge and samples:
            scores += judge.score(" ".join(samples))
        dist.broadcast(scores, src=1)
    if judge:
        judge.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
