"""Pairs of tensor parallel ranks train; metrics are summed over all on a group of their own."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]

WARMUP = 10


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    metrics = dist.new_group([0, 1, 2, 3])
    # The configuration of one rank is older: its metrics become rare earlier.
    warmup = 6 if faulty and rank == 2 else WARMUP
    for step in range(30):
        for _ in range(3):
            dist.all_reduce(torch.randn(32), group=pair)
        interval = 2 if step < warmup else 5
        if step % interval == 0:
            dist.all_reduce(torch.ones(4), group=metrics)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
