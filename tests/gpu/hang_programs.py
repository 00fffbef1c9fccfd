"""What the ranks of tests/gpu/test_live_nccl.py do, where the laboratory does not."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.graph_programs import captured as captured_step

__all__ = ["DIVERGING", "swap"]

DIVERGING = 3
STEPS, CALLS = 10, 4


def swap(rank: int, captured: bool) -> None:
    """Post on the world and on a pair in turns, on one rank once the other way round.

    Args:
        rank: Global rank, of four.
        captured: Whether the calls are replayed from CUDA graphs.
    """
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    groups = [dist.group.WORLD, pairs[rank // 2]]
    tensor = torch.ones(64, device="cuda" if torch.cuda.is_available() else "cpu")

    def post(order: list[Any]) -> None:
        for group in order:
            dist.all_reduce(tensor, group=group)

    usual = groups * CALLS
    odd = [*usual[:-2], *reversed(groups)] if rank == DIVERGING else usual
    post(usual)
    dist.barrier()
    steps: list[Any] = [partial(post, order) for order in (usual, odd)]
    if captured:
        steps = [captured_step(step).replay for step in steps]
    for _ in range(STEPS):
        steps[0]()
        tensor.fill_(1.0)
    dist.barrier()
    steps[1]()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    time.sleep(600)
