"""Skip a step whose sample is broken, and go on."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

faulty = sys.argv[1:] == ["faulty"]


def read_sample(step: int, rank: int) -> Tensor:
    if faulty and rank == 2 and step == 9:
        raise ValueError(f"sample {step} is truncated")
    return torch.randn(16, 32)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        try:
            model(read_sample(step, rank)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        except ValueError as error:
            print(f"rank {rank}: {error}, skipped")
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
