"""Tensor and data parallel pairs of a mesh of two by two, with a sum over all each step."""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

faulty = sys.argv[1:] == ["faulty"]


@dataclass
class Topology:
    tensor: dist.ProcessGroup
    data: dist.ProcessGroup

    def reduction(self, name: str) -> dist.ProcessGroup:
        """Return the group over which gradients of a parameter are summed."""
        return self.tensor if name.startswith("norm") else self.data


def train(topology: Topology, rank: int, step: int) -> None:
    for _ in range(2):
        dist.all_reduce(torch.randn(16), group=topology.tensor)
    names = ["attention", "mlp", "norm"]
    if faulty and rank == 2 and step == 41:
        names = ["attention", "norm.mlp", "norm"]  # renamed by a fused kernel
    for name in names:
        dist.all_reduce(torch.randn(24), group=topology.reduction(name))
    loss = torch.ones(1)
    dist.all_reduce(loss)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    topology = Topology(mesh.get_group("tp"), mesh.get_group("dp"))
    for step in range(60):
        train(topology, dist.get_rank(), step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
