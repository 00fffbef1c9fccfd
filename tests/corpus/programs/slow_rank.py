"""Train with one rank that reads its data slowly."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(40 if faulty else 2):
        if rank == 1:
            time.sleep(6)  # slow, and no mistake
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
