"""Send the newest weights from the rank that has them."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(256)
    for step in range(15):
        dist.all_reduce(weights)
        source = rank if faulty and rank == 2 and step == 10 else 0
        dist.broadcast(weights, src=source)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
