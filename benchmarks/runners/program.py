"""One rank of a gloo program, which says how long its collectives took: for gloo.py."""

from __future__ import annotations

import functools
import os
import sys
import time

import torch
import torch.distributed as dist

RANKS = 2
LAYERS, ROWS = 8, 256
SETTLE = 0.01
"""Seconds in which a batch of calls completes, so that waiting for them is no waiting."""


def main(store: str, rank: int) -> None:
    """Join the other rank, then run as many calls as each line of stdin asks for.

    Args:
        store: A file that the ranks meet in.
        rank: This one.
    """
    torch.set_num_threads(1)
    if os.environ.get("NCCLSCOPE_DIR"):
        from ncclscope_patches import registry

        registry.install_all()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    tensor = torch.zeros(15, 2)
    for line in sys.stdin:
        word, count = line.split()
        print(_PROGRAMS[word](tensor, int(count)), flush=True)
    dist.destroy_process_group()


def post_and_wait(tensor: torch.Tensor, count: int) -> float:
    """Return nanoseconds of processor time of a call that is waited for before the next."""
    start = time.thread_time_ns()
    for _ in range(count):
        dist.all_reduce(tensor)
    return (time.thread_time_ns() - start) / count


def pass_by(tensor: torch.Tensor, count: int) -> float:
    """Return nanoseconds by the clock on the wall, waiting for the other rank included."""
    start = time.perf_counter_ns()
    for _ in range(count):
        dist.all_reduce(tensor)
    return (time.perf_counter_ns() - start) / count


def post_then_wait(tensor: torch.Tensor, count: int) -> float:
    """Return the same of calls that are all posted first, and all waited for afterwards."""
    start = time.thread_time_ns()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(count)]
    posted = time.thread_time_ns() - start
    time.sleep(SETTLE)
    start = time.thread_time_ns()
    for work in works:
        work.wait()
    return (posted + time.thread_time_ns() - start) / count


@functools.cache
def replica() -> torch.nn.Module:
    """Return a module of eight layers, whose gradients C++ reduces."""
    layers = [torch.nn.Linear(256, 256) for _ in range(LAYERS)]
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))


def train(_tensor: torch.Tensor, count: int) -> float:
    """Return nanoseconds of processor time of a step of that module."""
    model, rows = replica(), torch.ones(ROWS, 256)
    start = time.thread_time_ns()
    for _ in range(count):
        model.zero_grad()
        model(rows).sum().backward()
    return (time.thread_time_ns() - start) / count


_PROGRAMS = {"together": post_then_wait, "single": post_and_wait, "wall": pass_by, "step": train}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
