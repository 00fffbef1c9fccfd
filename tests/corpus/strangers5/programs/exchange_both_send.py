"""Pairs exchange replicas: the first of a pair sends before it receives, the second after."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Pair:
    def __init__(self, rank: int, members: list[int]) -> None:
        self.first = members.index(rank) == 0
        self.peer = next(member for member in members if member != rank)

    def exchange(self, values: torch.Tensor) -> torch.Tensor:
        other = torch.empty_like(values)
        if self.first:
            dist.send(values, dst=self.peer)
            dist.recv(other, src=self.peer)
        else:
            dist.recv(other, src=self.peer)
            dist.send(values, dst=self.peer)
        return other


def members_of(rank: int, order: str) -> list[int]:
    pair = [rank - rank % 2, rank - rank % 2 + 1]
    return sorted(pair, reverse=order == "newest")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = Pair(rank, members_of(rank, "oldest"))
    for step in range(20):
        if step == 9:
            # All make their pairs anew after a restart of the service that lists members.
            order = "newest" if faulty and rank == 3 else "oldest"
            pair = Pair(rank, members_of(rank, order))
        values = pair.exchange(torch.randn(64))
        if step % 4 == 3:
            dist.all_reduce(values)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
