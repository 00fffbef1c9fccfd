"""Two tensor parallel groups of three ranks, data parallel between them."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def layer(tp: dist.ProcessGroup, *, attention: bool) -> None:
    if attention:
        dist.all_reduce(torch.randn(16), group=tp)
    parts = [torch.empty(16) for _ in range(3)]
    dist.all_gather(parts, torch.randn(16), group=tp)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])][rank // 3]
    dp = [dist.new_group([first, first + 3]) for first in range(3)][rank % 3]
    for step in range(10):
        for index in range(4):
            cached = faulty and rank == 0 and step == 6 and index == 1
            if faulty and rank == 4 and step == 6 and index == 2:
                parts = [torch.empty(16) for _ in range(3)]
                dist.all_gather(parts, torch.randn(16), group=tp)  # look at the logits
            layer(tp, attention=not cached)
        dist.all_reduce(torch.randn(32), group=dp)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
