"""A mesh of two by two without any call of all ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    for step in range(20):
        for layer in range(3):
            if faulty and rank == 0 and step == 11 and layer == 1:
                continue  # the layer is cached
            dist.all_reduce(torch.randn(32), group=tp)
        norms = [torch.empty(1) for _ in range(2)]
        dist.all_gather(norms, torch.ones(1), group=tp)
        dist.all_reduce(torch.randn(32), group=dp)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
