"""Collect a report of all ranks from time to time."""

import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def report(step: int) -> list[Any]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {"step": step, "tokens": 1024})
    return parts


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.randn(512)
    for step in range(20):
        dist.all_reduce(gradient)
        if step in (5, 15):
            if not faulty or step == 5:
                report(step)
            elif rank == 0:
                print(report(step))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
