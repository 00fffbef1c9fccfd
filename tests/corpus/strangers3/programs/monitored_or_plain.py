"""Wait for all ranks before each stage, with a barrier that can name the missing ones."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LIMIT = datetime.timedelta(minutes=20)


def fence() -> None:
    """Wait for all ranks."""
    if os.environ.get("TRAIN_DEBUG", "1") == "1":
        dist.monitored_barrier(timeout=LIMIT, wait_all_ranks=True)
    else:
        dist.barrier()


def configure(rank: int, stage: int) -> None:
    """Read the settings of a stage, which may change the environment."""
    if faulty and rank == 1 and stage == 3:
        os.environ["TRAIN_DEBUG"] = "0"


def train(steps: int) -> float:
    total = 0.0
    for _ in range(steps):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        total += loss.item()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for stage in range(6):
        configure(rank, stage)
        fence()
        train(steps=6)
        summary = [None] * dist.get_world_size()
        dist.all_gather_object(summary, {"rank": rank, "stage": stage})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
