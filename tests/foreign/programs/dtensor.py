"""DTensor: even and uneven shards, redistribution in all directions, partial sums, gathers."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank = dist.get_rank()
line = init_device_mesh("cpu", (4,))
square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))

for step in range(24):
    pause(rank, step)
    uneven = distribute_tensor(torch.randn(9 + step % 3, 6), line, [Shard(0)])
    uneven.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()])
    product = uneven.t() @ uneven
    assert product.full_tensor().shape == (6, 6)
    both = distribute_tensor(torch.randn(8, 8), square, [Shard(0), Shard(1)])
    both.redistribute(placements=[Shard(1), Shard(0)]).sum().full_tensor()
    partial = DTensor.from_local(torch.randn(8, 8), square, [Replicate(), Partial()])
    partial.redistribute(placements=[Shard(0), Replicate()])
    if step % 6 == 0:  # each column of the mesh has its own tensor
        own = square["columns"]
        distribute_tensor(torch.randn(5), own, [Shard(0)]).full_tensor()

dist.destroy_process_group()
