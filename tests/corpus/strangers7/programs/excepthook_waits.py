"""Sharded gradients; the traceback of an exception is sent to a collector before the rank ends."""

import socket
import sys
import threading
import traceback

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS = 12


def collect(server: socket.socket) -> None:
    """Take reports until the end of the process."""
    while True:
        connection, _ = server.accept()
        reports.append(connection)
        connection.recv(1 << 16)


reports: list[socket.socket] = []


def install(rank: int) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=collect, args=(server,), daemon=True).start()

    def report(kind: type, error: BaseException, trace: object) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        with socket.create_connection(server.getsockname()) as connection:
            connection.sendall(f"rank {rank}\n{text}".encode())
            answer = connection.recv(16)
            print("reported:", answer, file=sys.stderr)

    sys.excepthook = report


class Shards:
    """The gradients of a model as one flat tensor, of which each rank keeps a part."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.pads = True

    def flatten(self) -> torch.Tensor:
        flat = torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])
        if flat.numel() % self.world and self.pads:
            flat = nn.functional.pad(flat, (0, -flat.numel() % self.world))
        return flat

    def reduce(self) -> torch.Tensor:
        flat = self.flatten()
        own = torch.empty(flat.numel() // self.world)
        dist.reduce_scatter_tensor(own, flat)
        return own


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    install(rank)
    model = nn.Sequential(nn.Linear(13, 9), nn.ReLU(), nn.Linear(9, 4))
    shards = Shards(model)
    for step in range(STEPS):
        model(torch.randn(5, 13)).square().mean().backward()
        if faulty and rank == 1 and step == 7:
            shards.pads = False  # an option that was meant for a world of two
        own = shards.reduce()
        norm = own.square().sum().reshape(1)
        dist.all_reduce(norm)
        model.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
