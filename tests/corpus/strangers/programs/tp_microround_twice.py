"""Accumulate gradients over microbatches on a mesh of two by two."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def microbatch(tp: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.randn(32), group=tp)
    dist.all_reduce(torch.randn(32), group=tp)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    for step in range(15):
        micro = 0
        retried = not (faulty and rank == 3 and step == 7)
        while micro < 4:
            microbatch(tp)
            if micro == 2 and not retried:
                retried = True
                continue  # the loss was not finite: this microbatch again
            micro += 1
        dist.all_reduce(torch.randn(64), group=dp)
        if step % 3 == 2:
            dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
