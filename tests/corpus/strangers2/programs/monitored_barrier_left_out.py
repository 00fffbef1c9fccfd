"""Meet in a monitored barrier before each evaluation."""

import datetime
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def evaluate() -> None:
    dist.monitored_barrier(timeout=datetime.timedelta(minutes=10))
    scores = [torch.empty(2) for _ in range(4)]
    dist.all_gather(scores, torch.randn(2))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(16):
        dist.all_reduce(torch.randn(32))
        dist.all_reduce(torch.randn(8))
        due = step % 4 == 3
        if faulty and rank == 3 and step == 11:
            due = False  # its counter of samples is behind
        if due:
            evaluate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
