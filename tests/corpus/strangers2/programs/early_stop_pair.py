"""Three tensor parallel pairs; each looks at its own loss for early stopping."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([base, base + 1]) for base in (0, 2, 4)][rank // 2]
    dp = [dist.new_group([first, first + 2, first + 4]) for first in (0, 1)][rank % 2]
    for epoch in range(6):
        for _ in range(3):
            dist.all_reduce(torch.randn(16), group=tp)
            dist.all_reduce(torch.randn(16), group=dp)
        loss = torch.ones(1)
        if faulty and rank in (2, 3) and epoch == 3:
            loss *= 9
        dist.all_reduce(loss, group=tp)
        if loss.item() > 4:
            break  # no better loss in this pair
    for _ in range(2):
        tests = [torch.empty(16) for _ in range(3)]
        dist.all_gather(tests, torch.randn(16), group=dp)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
