"""A pipeline of four stages by torch.distributed.pipelining, with the schedule of a setting."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

faulty = sys.argv[1:] == ["faulty"]
MICROBATCHES, ROWS = 8, 2


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(8, 8), rank, world, torch.device("cpu"))
    # The settings of rank 1 are those of its last run.
    kind = ScheduleGPipe if faulty and rank == 1 else Schedule1F1B
    schedule = kind(stage, n_microbatches=MICROBATCHES, loss_fn=squared)
    for _ in range(4):
        rows, target = torch.randn(MICROBATCHES * ROWS, 8), torch.randn(MICROBATCHES * ROWS, 8)
        if rank == 0:
            schedule.step(rows)
        elif rank == world - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
