"""Two of five ranks unpack their data before they join the job, and come long after the others."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = {3: 18, 4: 32} if faulty else {3: 0.3, 4: 0.6}


def unpack(rank: int) -> None:
    """Wait for the program that copies the data of this rank here."""
    subprocess.run(["sleep", str(SECONDS[rank])], check=True)


def main() -> None:
    rank = int(os.environ["RANK"])
    if rank in SECONDS:
        unpack(rank)
    dist.init_process_group("gloo")
    halves = [dist.new_group([0, 1, 2]), dist.new_group([3, 4])]
    rounds = 30 if faulty else 3
    for number in range(rounds):
        for _ in range(10):
            dist.all_reduce(torch.randn(8), group=halves[rank >= 3])
        if number % 5 == 0:
            dist.all_reduce(torch.randn(4))
        if faulty and rank == number % 5:
            subprocess.run(["sleep", "2"], check=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
