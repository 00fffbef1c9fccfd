"""Train; one rank prepares its next shard in Python, and its peers wait for it meanwhile."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def prepare(seconds: float) -> int:
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        total += sum(number * number for number in range(2000))
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(20):
        if rank == 2 and step == 12:
            prepare(240 if faulty else 1)  # slow, and no mistake
        dist.all_reduce(torch.ones(64))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
