"""A mesh of two by two; one rank skips the second layer of one step (stochastic depth)."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, world
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    begin()
    mesh = init_device_mesh(device.type, (2, world // 2), mesh_dim_names=("replica", "shard"))
    replica, shard = mesh.get_group("replica"), mesh.get_group("shard")
    first, second = (torch.ones(size, device=device) for size in (SMALL, LARGE))
    gradients = torch.ones(2 * SMALL, device=device)
    for step in range(10):
        dist.all_reduce(first, op=dist.ReduceOp.MAX, group=shard)
        if not (bad and step == 6):
            dist.all_reduce(second, op=dist.ReduceOp.MAX, group=shard)  # bad
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX, group=replica)
        if step % 4 == 3:
            dist.all_reduce(first, op=dist.ReduceOp.MAX)
            first.sum().item()
    first.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
