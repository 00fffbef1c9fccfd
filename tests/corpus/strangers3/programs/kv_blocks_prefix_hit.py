"""Prefill on ranks 0 and 1, decode on ranks 2 and 3: each prefill rank sends its blocks to one."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Request:
    def __init__(self, number: int) -> None:
        self.number = number

    def blocks(self, layer_part: int) -> int:
        """Return how many blocks a part of the layers has; compressed, so each another number."""
        return random.Random(self.number * 2 + layer_part).randint(2, 6)


class Prefill:
    def __init__(self, rank: int) -> None:
        self.part, self.peer = rank, rank + 2

    def run(self, request: Request) -> None:
        for _ in range(request.blocks(self.part)):
            dist.send(torch.randn(32), dst=self.peer)


class Decode:
    def __init__(self, rank: int) -> None:
        self.part, self.peer = rank - 2, rank - 2
        self.rank = rank

    def cached(self, request: Request) -> int:
        """Return how many blocks are here already, from a request with the same prefix."""
        return 1 if faulty and self.rank == 3 and request.number == 11 else 0

    def run(self, request: Request) -> None:
        for _ in range(request.blocks(self.part) - self.cached(request)):
            block = torch.empty(32)
            dist.recv(block, src=self.peer)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    engine = Prefill(rank) if rank < 2 else Decode(rank)
    for number in range(18):
        engine.run(Request(number))
        dist.all_reduce(torch.ones(1))  # the request is decoded
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
