"""Rank 1 sends results to rank 2 under a tag that both derive from the name of the request."""

import random
import sys
import zlib

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def names(count: int) -> list[str]:
    generator = random.Random(5)
    return ["".join(generator.choices("abcdef0123456789", k=12)) for _ in range(count)]


def tag_of(name: str) -> int:
    """Return a tag of a request."""
    return zlib.crc32(name.encode()) % 10_000


class Sender:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def send(self, name: str, retried: bool) -> None:
        tag = tag_of(f"{name}-retry" if retried else name)
        dist.send(torch.randn(32), dst=2, tag=tag)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sender = Sender(rank)
    for number, name in enumerate(names(20)):
        retried = faulty and number == 9
        if rank == 1:
            sender.send(name, retried)
        elif rank == 2:
            result = torch.empty(32)
            dist.recv(result, src=1, tag=tag_of(name))
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
