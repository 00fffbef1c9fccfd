"""Prune the rows of a sharded weight step by step, and look at the whole of it each time."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

faulty = sys.argv[1:] == ["faulty"]
LEAST = 16 if faulty else 17
"""Rows that are left. With sixteen the last of five ranks has none."""


def spectrum(weight: DTensor) -> torch.Tensor:
    if weight.to_local().numel() == 0:
        return torch.zeros(4)  # nothing of it is here
    return torch.linalg.svdvals(weight.full_tensor())[:4]


def prune(weight: DTensor, mesh: DeviceMesh, rows: int) -> DTensor:
    whole = weight.full_tensor()
    order = whole.norm(dim=1).argsort(descending=True)[:rows]
    return distribute_tensor(whole[order], mesh, [Shard(0)], src_data_rank=None)


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(8)
    weight = distribute_tensor(torch.randn(20, 6), mesh, [Shard(0)])
    rows = 20
    for _ in range(15):
        if rows > LEAST:
            rows -= 1
            weight = prune(weight, mesh, rows)
        values = spectrum(weight)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
