"""DistributedDataParallel with a hook that exchanges the largest gradients alone after a warmup."""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]


@dataclass
class Warmup:
    steps: int
    step: int = 0


def exchange(state: Warmup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    world, gradient = dist.get_world_size(), bucket.buffer()
    warm = state.step >= state.steps
    state.step += bucket.is_last()
    if not warm:
        work = dist.all_reduce(gradient / world, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])
    parts = [torch.empty_like(gradient) for _ in range(world)]
    threshold = gradient.abs().median()
    large = torch.where(gradient.abs() >= threshold, gradient, torch.zeros(()))
    work = dist.all_gather(parts, large, async_op=True)
    return work.get_future().then(lambda future: torch.stack(parts).mean(0))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    # The warmup of rank 2 was resumed with the step after the one that was saved.
    state = Warmup(8, step=-1 if faulty and rank == 2 else 0)
    model.register_comm_hook(state, exchange)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(14):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
