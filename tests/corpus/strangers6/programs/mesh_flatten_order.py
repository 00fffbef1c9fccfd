"""Eight ranks in a mesh of three dimensions, two pairs of which are flattened for sums."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

faulty = sys.argv[1:] == ["faulty"]


class Parallelism:
    def __init__(self, rank: int) -> None:
        self.mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        self.context_first = faulty and rank == 5
        self.losses, self.weights = self.flatten()

    def flatten(self) -> tuple[DeviceMesh, DeviceMesh]:
        if self.context_first:
            weights = self.mesh["cp", "tp"]._flatten("cp_tp")
            losses = self.mesh["dp", "cp"]._flatten("dp_cp")
        else:
            losses = self.mesh["dp", "cp"]._flatten("dp_cp")
            weights = self.mesh["cp", "tp"]._flatten("cp_tp")
        return losses, weights


def main() -> None:
    dist.init_process_group("gloo")
    warmup = torch.randn(8)
    for _ in range(4):
        dist.all_reduce(warmup)
    parallelism = Parallelism(dist.get_rank())
    for _ in range(10):
        dist.all_reduce(torch.randn(20), group=parallelism.weights.get_group())
        dist.all_reduce(torch.randn(1), group=parallelism.losses.get_group())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
