"""Each step needs a licence of the node's daemon; logs are rotated when a signal asks for it."""

import os
import signal
import socket
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]

DAEMON = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
for _ in range(int(sys.argv[1])):
    connection.sendall(connection.recv(5))
time.sleep(3600)
"""


class Licence:
    """A connection to the daemon of this node."""

    def __init__(self, answers: int) -> None:
        command = [sys.executable, "-c", DAEMON, str(answers)]
        self.daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        port = int(self.daemon.stdout.readline())
        self.connection = socket.create_connection(("127.0.0.1", port))

    def take(self) -> None:
        self.connection.sendall(b"lease")
        self.connection.recv(5)


class Log:
    def __init__(self) -> None:
        self.lock, self.lines = threading.Lock(), []
        signal.signal(signal.SIGUSR1, self.rotate)

    def write(self, line: str, *, signalled: bool) -> None:
        with self.lock:
            self.lines.append(line)
            if signalled:  # the signal comes while the lock is held
                os.kill(os.getpid(), signal.SIGUSR1)

    def rotate(self, number: int, frame: object) -> None:
        with self.lock:
            self.lines.clear()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    licence = Licence(answers=7 if faulty and rank == 1 else 100)
    log = Log()
    for step in range(12):
        licence.take()
        log.write(f"step {step}", signalled=faulty and rank == 4 and step == 7)
        dist.all_reduce(torch.randn(32))
        dist.all_reduce(torch.ones(1))
    licence.daemon.kill()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
