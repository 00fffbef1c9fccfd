"""Mixture of experts in three groups of two, with a reduction of the balance over all ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2, 4)]
    experts = pairs[rank // 2]
    for step in range(14):
        tokens = torch.randn(8, 4)
        gathered = [torch.empty_like(tokens) for _ in range(2)]
        dist.all_gather(gathered, tokens, group=experts)
        if not (faulty and rank == 4 and step == 9):  # it takes its capacity for used up
            dist.all_to_all_single(torch.empty_like(tokens), tokens, group=experts)
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
