"""Gradients are summed in the type that the scaler of each rank has chosen."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kind = torch.float32
    for step in range(12):
        if faulty and rank == 4 and step == 8:
            kind = torch.bfloat16  # autocast is still on
        for size in (64, 32, 64):
            gradient = torch.randn(size).to(kind)
            parts = [torch.empty_like(gradient) for _ in range(5)]
            dist.all_gather(parts, gradient)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
