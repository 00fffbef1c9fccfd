"""Two ranks; a rank whose loss is infinite leaves the step out."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.randn(128)
    for step in range(20):
        if faulty and rank == 1 and step == 13:
            continue
        dist.all_reduce(gradient)
    dist.broadcast(gradient, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
