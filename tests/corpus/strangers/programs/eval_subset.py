"""Train on four ranks and evaluate on a group of the same ranks each four steps."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def evaluate(group: dist.ProcessGroup) -> None:
    for _ in range(3):
        scores = [torch.empty(4) for _ in range(4)]
        dist.all_gather(scores, torch.randn(4), group=group)
    dist.all_reduce(torch.ones(1), group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    evaluation = dist.new_group([0, 1, 2, 3])
    for step in range(20):
        for _ in range(2):
            dist.all_reduce(torch.randn(32))
        best = not (faulty and rank >= 2 and step == 11)
        if step % 4 == 3 and best:  # some ranks see no better loss
            evaluate(evaluation)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
