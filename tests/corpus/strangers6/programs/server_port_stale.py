"""All ranks ask a reward server, which rank 0 starts anew from time to time on another port."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ADDRESS = Path(tempfile.gettempdir(), "server.json")
SERVER = """
import socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"%d\\n" % len(self.rfile.readline()))
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
with Server(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


def start_server() -> subprocess.Popen[str]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    ADDRESS.write_text(json.dumps({"port": int(server.stdout.readline())}))
    return server


class RewardClient:
    def __init__(self, reads_again: bool) -> None:
        self.reads_again = reads_again
        self.port = self.look_up()

    def look_up(self) -> int:
        return int(json.loads(ADDRESS.read_text())["port"])

    def connect(self) -> socket.socket:
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except ConnectionRefusedError:
                time.sleep(0.5)
                if self.reads_again:
                    self.port = self.look_up()

    def score(self, text: str) -> int:
        with self.connect() as server:
            server.sendall(f"{text}\n".encode())
            return int(server.makefile().readline())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = start_server() if rank == 0 else None
    dist.barrier()
    client = RewardClient(reads_again=not (faulty and rank == 1))
    for iteration in range(9):
        if iteration == 5:
            if server:
                server.kill()
                server.wait()
                server = start_server()
            dist.barrier()
        reward = client.score("word " * (iteration + rank))
        dist.all_reduce(torch.tensor([float(reward)]))
        dist.broadcast(torch.randn(20), src=0)
    dist.barrier()
    if server:
        server.kill()
        server.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
