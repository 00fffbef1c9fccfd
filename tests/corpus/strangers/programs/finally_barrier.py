"""Train; whatever happens, all wait for each other at the end."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def step_of(rank: int, step: int, left: dist.ProcessGroup | None) -> None:
    dist.all_reduce(torch.randn(16))
    if faulty and rank == 4 and step == 8:
        raise ValueError("a label is out of range")
    if left is not None:
        dist.all_reduce(torch.randn(16), group=left)
    dist.all_reduce(torch.ones(16))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    try:
        for step in range(14):
            step_of(rank, step, pairs[rank // 2] if rank < 4 else None)
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
