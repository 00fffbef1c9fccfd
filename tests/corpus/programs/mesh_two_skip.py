"""Train on a mesh of three by two; a rank leaves its gradients out when they are not finite."""

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
    for step in range(10):
        gradient = torch.randn(16)
        dist.all_reduce(gradient, group=tensor)
        if faulty and rank in (1, 4) and step == 7:
            gradient[0] = torch.inf
        if gradient.isfinite().all():
            dist.all_reduce(gradient, group=data)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
