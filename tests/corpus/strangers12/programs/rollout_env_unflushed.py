"""Actors step an environment and agree on its statistics; one sends the rollouts to a learner."""

import pathlib
import socket
import struct
import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, WIDTH = 12, 16
LEARNERS, ACTORS = (0, 1), (2, 3)
READER, SENDER = 1, 3
ENVIRONMENT = "import sys\nfor line in sys.stdin: print(len(line), flush=True)"


class Environment:
    """A simulator in a child process: a line for a command, a line for its answer."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.child = subprocess.Popen(
            [sys.executable, "-S", "-c", ENVIRONMENT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, command: str, flush: bool = True) -> float:
        self.child.stdin.write(command + "\n")
        if flush:
            self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def rollout(self, number: int) -> torch.Tensor:
        crashed = faulty and (self.rank, number) == (2, 8)
        start = self.ask("reset", flush=not crashed)
        return torch.full((WIDTH,), start + self.ask("step"))

    def close(self) -> None:
        self.child.stdin.close()
        self.child.wait()


def connect(rank: int) -> socket.socket | None:
    """Return the connection between the sender and the reader."""
    port = pathlib.Path("learner.port")
    server = None
    if rank == READER:
        server = socket.create_server(("127.0.0.1", 0))
        port.write_text(str(server.getsockname()[1]))
    dist.barrier()
    if server is not None:
        return server.accept()[0]
    if rank == SENDER:
        return socket.create_connection(("127.0.0.1", int(port.read_text())))
    return None


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learners, actors = dist.new_group(list(LEARNERS)), dist.new_group(list(ACTORS))
    link = connect(rank)
    environment = Environment(rank) if rank in ACTORS else None
    for number in range(ROUNDS):
        if environment is not None:
            rollout = environment.rollout(number)
            dist.all_reduce(rollout, group=actors)
            if rank == SENDER:
                link.sendall(struct.pack(f"{WIDTH}f", *rollout.tolist()))
        else:
            gradient = torch.rand(WIDTH)
            if rank == READER:
                data = link.recv(4 * WIDTH, socket.MSG_WAITALL)
                gradient += torch.tensor(struct.unpack(f"{WIDTH}f", data))
            dist.all_reduce(gradient, group=learners)
    if environment is not None:
        environment.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
