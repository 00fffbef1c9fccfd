"""Save a checkpoint: the parts of all ranks are gathered on the rank that writes."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def save(rank: int, writer: int) -> None:
    part = torch.randn(64)
    parts = [torch.empty(64) for _ in range(4)] if rank == writer else None
    dist.gather(part, parts, dst=writer)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(15):
        for _ in range(2):
            dist.all_reduce(torch.randn(32))
        if step % 3 == 2:
            writer = 0
            if faulty and rank == 2 and step == 11:
                writer = 1  # its host has a disk of its own
            save(rank, writer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
