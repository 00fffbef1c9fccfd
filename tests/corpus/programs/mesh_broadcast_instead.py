"""Train on a mesh of three by two; two hosts still have the release that broadcasts gradients."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    weight = torch.ones(16)
    for step in range(6):
        hidden = torch.randn(16)
        for _layer in range(3):
            hidden = torch.tanh(hidden * weight)
            dist.all_reduce(hidden, group=tensor)
        gradient = hidden.clone()
        if faulty and rank in (1, 3) and step == 3:
            dist.broadcast(gradient, src=1, group=data)
        else:
            dist.all_reduce(gradient, group=data)
        weight = weight - 0.01 * gradient
        dist.all_reduce(hidden.mean())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
