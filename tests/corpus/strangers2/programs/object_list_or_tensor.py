"""Rank 0 sends the settings of each step as an object."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def settings(step: int, *, packed: bool) -> None:
    if packed:
        dist.broadcast(torch.zeros(16, dtype=torch.uint8), src=0)
        return
    values = [{"step": step, "rate": 0.1}]
    dist.broadcast_object_list(values, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        settings(step, packed=faulty and rank == 2 and step == 7)  # another release
        for _ in range(2):
            dist.all_reduce(torch.randn(1024))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
