"""Compute with a DTensor and print it."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    mesh = init_device_mesh("cpu", (4,))
    rank = dist.get_rank()
    torch.manual_seed(0)
    weights = distribute_tensor(torch.randn(16, 8), mesh, [Shard(0)])
    for step in range(6):
        weights = weights + 1
        norm = weights.sum().full_tensor()
        if faulty and step == 4:
            if rank == 0:
                print(f"step {step}:", weights.full_tensor()[0])
        elif step == 2:
            weights.full_tensor()
        if rank == 0:
            print(f"step {step}: sum {norm.item():.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
