"""The batch system signals before it takes nodes away; the handler saves a checkpoint."""

import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def save(number: int, frame: object) -> None:
    dist.barrier()
    parts = [torch.empty(16) for _ in range(4)]
    dist.all_gather(parts, torch.randn(16))


def main() -> None:
    signal.signal(signal.SIGUSR2, save)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        dist.all_reduce(torch.randn(32))
        if step == 7 and (rank == 2 or not faulty):  # one node alone is signalled
            os.kill(os.getpid(), signal.SIGUSR2)
        loss = torch.randn(16)
        dist.all_reduce(loss)
        dist.broadcast(torch.ones(8), src=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
