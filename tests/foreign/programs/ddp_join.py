"""Uneven inputs: `join()` of DDP alone, then `Join` of DDP with a sharded optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
plain = torch.optim.SGD(model.parameters(), lr=0.01)
sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)

for optimizer, uneven in ((plain, model.join()), (sharded, Join([model, sharded]))):
    with uneven:
        for step in range(10 + 7 * rank):
            pause(rank, step)
            loss = model(torch.randn(16, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    assert total == sum(range(dist.get_world_size()))

dist.barrier()
dist.destroy_process_group()
