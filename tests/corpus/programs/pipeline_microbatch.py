"""A GPipe schedule of torch.distributed.pipelining with four stages."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    size = 3 if faulty and rank == 2 else 4  # microbatches, by a configuration of each rank
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, n_microbatches=size, loss_fn=lambda output, target: (output - target).square().mean()
    )
    for _ in range(5):
        batch, target = torch.randn(size * 8, 32), torch.randn(size * 8, 32)
        if rank == 0:
            schedule.step(batch)
        elif rank == world - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
