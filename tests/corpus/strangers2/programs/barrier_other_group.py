"""Two tensor parallel groups of three; a barrier of the data parallel pair ends a step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])][rank // 3]
    dp = [dist.new_group([first, first + 3]) for first in range(3)][rank % 3]
    for step in range(12):
        for _ in range(2):
            dist.all_reduce(torch.randn(32), group=tp)
        dist.all_reduce(torch.randn(64), group=dp)
        fence = dp
        if faulty and rank == 4 and step == 8:
            fence = tp  # the argument is the group of the last call
        dist.barrier(group=fence)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
