"""Trains with DDP; the size of its buckets and other settings come from a node's environment."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, DEPTH = 10, 64, 6


def load_environment(rank: int) -> None:
    """Set what the node's profile says."""
    os.environ.setdefault("TRAIN_LR", "0.01")
    os.environ.setdefault("TRAIN_BUCKET_MB", "25")
    if faulty and rank == 3:
        os.environ["TRAIN_BUCKET_MB"] = "0.02"  # left over from a test on that node


def build() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(20, WIDTH)]
    for _ in range(DEPTH):
        layers += [nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5))


def wrap(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        bucket_cap_mb=float(os.environ["TRAIN_BUCKET_MB"]),
        find_unused_parameters=True,  # some recipes leave layers out
    )


def check_tokens(tokenizer: dict[str, int]) -> None:
    """See that all ranks have the same tokenizer."""
    sizes = [0] * dist.get_world_size()
    dist.all_gather_object(sizes, len(tokenizer))
    assert len(set(sizes)) == 1


def train(model: DistributedDataParallel) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["TRAIN_LR"]))
    total = torch.zeros(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(5, (8,)))
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 5 == 4:
            dist.all_reduce(total)
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    load_environment(rank)
    check_tokens({"a": 0, "b": 1, "c": 2})
    for _ in range(4):
        dist.all_reduce(torch.randn(30))  # warms the connections up
    total = train(wrap(build()))
    dist.barrier()
    if rank == 0:
        print(f"{total.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
