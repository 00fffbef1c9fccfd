"""Ranks have uneven work and unequal numbers of microbatches; their calls match all the same."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair, mine = pairs[rank // 2], rank // 2
    for step in range(60 if faulty else 2):
        micros = 1 if mine == step % 2 else 6  # the pairs have batches of other lengths
        for _ in range(micros):
            dist.all_reduce(torch.randn(16), group=pair)
        if rank == step % 4:
            time.sleep(5 if faulty else 0.5)  # a long document
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
