"""Each step has some work on the host; one rank has minutes of it in one step."""

import time

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def tokenize(seconds: float) -> int:
    text, words = "the quick brown fox jumps over the lazy dog", 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        words += len(text.split())  # bad
    return words


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    losses = torch.ones(SMALL, device=device)
    for step in range(9):
        tokenize(300 if bad and step == 6 else 0.02)  # bad
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)  # bad
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)
        losses.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
