"""Train on a mesh of data and tensor parallel pairs; the loss is averaged over all ranks."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    batches = 7 if faulty and rank == 3 else 6
    weight = torch.ones(16)
    for _ in range(batches):
        hidden = torch.randn(16)
        for _layer in range(3):
            hidden = torch.tanh(hidden * weight)
            dist.all_reduce(hidden, group=tensor)
        gradient = hidden.clone()
        dist.all_reduce(gradient, group=data)
        weight = weight - 0.01 * gradient
        dist.all_reduce(hidden.mean())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
