"""A program that is no test: some steps of the dispatcher, to be recorded and compared.

torchrun --nproc-per-node 4 program.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from dispatcher import HIDDEN, Dispatcher

EXPERTS = 8
TOKENS = 4
STEPS = 3


def main() -> None:
    """Run on each rank."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dispatcher = Dispatcher(EXPERTS, skip_when_idle=os.environ.get("DISPATCHER") == "buggy")
    for step in range(STEPS):
        experts = [(rank + step + token) % EXPERTS for token in range(TOKENS)]
        dispatcher.step(torch.ones(TOKENS, HIDDEN), experts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
