"""Sharded optimizer by hand: reduce the gradients, update the own shard, gather parameters."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def optimizer_step() -> None:
    for _ in range(3):
        shards = [torch.empty(16) for _ in range(4)]
        dist.all_gather(shards, torch.randn(16))
    dist.all_reduce(torch.ones(64))  # moments


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(14):
        gradient = torch.randn(64)
        for _ in range(2):
            dist.all_reduce(gradient)
        overflow = faulty and rank == 3 and step == 9
        if overflow:
            continue  # skip the step, as the loss scaler says
        optimizer_step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
