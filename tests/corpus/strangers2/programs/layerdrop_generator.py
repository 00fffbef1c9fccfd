"""Layers are dropped at random; all ranks are to draw the same numbers."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    generator = random.Random(1234)
    for step in range(14):
        if faulty and rank == 2 and step == 5:
            generator.random()  # a sample of its data was augmented
        for _ in range(6):
            if generator.random() < 0.3:
                continue
            dist.all_reduce(torch.randn(16), group=tp)
        dist.all_reduce(torch.randn(64))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
