"""Three of four ranks train, one evaluates: a group for those that train."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
TRAINERS = [0, 1, 2]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.ones(16)
    dist.all_reduce(tensor)
    trainers = None
    if rank in TRAINERS or not faulty:
        trainers = dist.new_group(TRAINERS)
    savers = dist.new_group([0, 1, 2, 3])
    for _ in range(5):
        if rank in TRAINERS:
            dist.all_reduce(tensor, group=trainers)
        dist.all_reduce(tensor, group=savers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
