"""Four stages under three schedules of torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from tests.foreign.programs.pace import pause

MICROBATCHES = 8

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
rows, target = torch.randn(32, 16), torch.randn(32, 16)


def stage(index: int, count: int) -> PipelineStage:
    """Return one stage of several."""
    return PipelineStage(nn.Sequential(nn.Linear(16, 16), nn.ReLU()), index, count, device)


schedules = [
    kind(stage(rank, world), n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss)
    for kind in (ScheduleGPipe, Schedule1F1B)
]
two = [stage(rank + world * half, 2 * world) for half in range(2)]
schedules.append(
    ScheduleInterleaved1F1B(two, n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss)
)
for schedule in schedules:
    for step in range(8):
        pause(rank, step)
        if rank == 0:
            schedule.step(rows)
        elif rank == world - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()

dist.barrier()
dist.destroy_process_group()
