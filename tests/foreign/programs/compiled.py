"""torch.compile: DDP cut at its buckets, and collectives inside of a graph."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
world = dist.group.WORLD


@torch.compile(backend="aot_eager", fullgraph=True)
def mean(rows: torch.Tensor) -> torch.Tensor:
    """Return the mean over the ranks, by a gather and by a sum."""
    gathered = functional.all_gather_tensor(rows, 0, world)
    summed = functional.all_reduce(rows, "sum", world)
    return gathered.mean() + summed.mean()


for step in range(24):
    pause(rank, step)
    compiled(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    mean(torch.randn(4, 4 + step % 2))

dist.destroy_process_group()
