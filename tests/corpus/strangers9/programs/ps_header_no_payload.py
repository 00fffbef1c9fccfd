"""A parameter server: a worker sends a header and what it announces, and pulls the weights."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, SIZE, SERVER = 12, 32, 0
HEADER, PAYLOAD = 0, 1  # tags
PUSH, PULL, DONE = 1.0, 2.0, 3.0


class Channel:
    def __init__(self, peer: int) -> None:
        self.peer = peer

    def announce(self, kind: float, length: int) -> None:
        dist.send(torch.tensor([kind, float(length)]), dst=self.peer, tag=HEADER)

    def heard(self) -> tuple[float, int]:
        header = torch.empty(2)
        dist.recv(header, src=self.peer, tag=HEADER)
        return header[0].item(), int(header[1].item())

    def put(self, values: torch.Tensor) -> None:
        dist.send(values, dst=self.peer, tag=PAYLOAD)

    def get(self, length: int) -> torch.Tensor:
        values = torch.empty(length)
        dist.recv(values, src=self.peer, tag=PAYLOAD)
        return values


class Server:
    def __init__(self, workers: range) -> None:
        self.channels = {worker: Channel(worker) for worker in workers}
        self.weights = torch.randn(SIZE)

    def serve(self, channel: Channel) -> bool:
        kind, length = channel.heard()
        if kind == PUSH:
            packed = channel.get(length)
            self.weights[:length] -= 0.01 * packed
        elif kind == PULL:
            channel.put(self.weights)
        return kind != DONE

    def run(self) -> None:
        while self.channels:
            for worker, channel in list(self.channels.items()):
                if not self.serve(channel):
                    del self.channels[worker]


class Quantizer:
    def __init__(self, levels: int) -> None:
        self.levels = levels

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        span = values.max() - values.min()
        if span <= 0:
            raise ValueError("nothing to tell apart")
        return (values / span * self.levels).round() / self.levels


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank, self.channel = rank, Channel(SERVER)
        self.quantizer, self.dropped = Quantizer(16), 0

    def gradient(self, number: int) -> torch.Tensor:
        length = 8 + 8 * (number % 3)
        if faulty and (self.rank, number) == (2, 7):
            return torch.zeros(length)  # all of its rows are masked
        return torch.randn(length)

    def push(self, gradient: torch.Tensor) -> None:
        self.channel.announce(PUSH, len(gradient))
        self.channel.put(self.quantizer.pack(gradient))

    def round(self, number: int) -> torch.Tensor:
        try:
            self.push(self.gradient(number))
        except ValueError:
            self.dropped += 1
        self.channel.announce(PULL, 0)
        return self.channel.get(SIZE)

    def run(self) -> None:
        for number in range(ROUNDS):
            self.round(number)
        self.channel.announce(DONE, 0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    if rank == SERVER:
        Server(range(1, world)).run()
    else:
        Worker(rank).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
