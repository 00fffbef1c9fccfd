"""Gather the lengths and sum the losses after each step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def gather_lengths(length: int) -> list[int]:
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([length]))
    return [int(part) for part in parts]


def sum_losses(loss: float) -> float:
    total = torch.tensor([loss], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(20):
        if faulty and rank == 2 and step == 12:  # the branch of the last, shorter batch
            sum_losses(0.5)
            gather_lengths(7)
        else:
            gather_lengths(8)
            sum_losses(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
