"""Overlap the sum of the gradients with the transfer of activations to rank 0."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        if rank == 0:
            dist.recv(torch.empty(32), src=1)
            dist.all_reduce(torch.randn(16))
            continue
        work = dist.all_reduce(torch.randn(16), async_op=True)
        if rank == 1:
            if faulty and step == 8:
                work.wait()  # the stream is synchronized too early
                dist.send(torch.ones(32), dst=0)
            else:
                dist.send(torch.ones(32), dst=0)
        work.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
