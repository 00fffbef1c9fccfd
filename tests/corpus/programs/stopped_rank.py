"""Train with all_reduce; one process is stopped, as by a batch system or a debugger."""

import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.randn(256)
    for step in range(20):
        if faulty and rank == 1 and step == 11:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(gradient)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
