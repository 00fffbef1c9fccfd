"""Reinforcement learning: ranks 0 and 1 train, 2 and 3 generate, weights go to all."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def sync_weights(sync: dist.ProcessGroup) -> None:
    for _ in range(3):
        dist.broadcast(torch.ones(64), src=0, group=sync)
    dist.barrier(group=sync)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sync = dist.new_group([0, 1, 2, 3])
    trainers, rollouts = dist.new_group([0, 1]), dist.new_group([2, 3])
    for iteration in range(10):
        early = faulty and rank == 3 and iteration == 6
        if not early:
            sync_weights(sync)
        if rank < 2:
            for _ in range(2):
                dist.all_reduce(torch.randn(64), group=trainers)
        else:
            samples = [torch.empty(16) for _ in range(2)]
            dist.all_gather(samples, torch.randn(16), group=rollouts)
        if early:
            sync_weights(sync)  # after the generation instead of before it
        dist.broadcast(torch.ones(32), src=2)  # experience
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
