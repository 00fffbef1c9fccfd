"""Evaluate on shards of unequal length; ranks without data take part with empty batches."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
ROUNDS = 60 if faulty else 2
SCORING = 14.0 if faulty else 0.2


def busy(seconds: float) -> float:
    """Score texts in plain Python."""
    end, total = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        total += sum(number**0.5 for number in range(2000))
    return total


def evaluate(rank: int, world: int, length: int) -> None:
    longest = torch.tensor([length])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    for number in range(int(longest)):
        texts = [f"{rank}.{number}"] if number < length else []
        gathered: list[list[str] | None] = [None] * world
        dist.all_gather_object(gathered, texts)
        if rank == 0 and number % 2 == 0:
            busy(SCORING)
        elif texts and rank == 4:
            time.sleep(SCORING / 2)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for epoch in range(ROUNDS):
        for _ in range(3 + epoch % 2):
            dist.all_reduce(torch.randn(32))
        evaluate(rank, world, (rank * 2 + epoch) % 5)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
