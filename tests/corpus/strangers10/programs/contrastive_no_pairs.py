"""Contrastive training: features are gathered with gradients, so that backward speaks as well."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

faulty = sys.argv[1:] == ["faulty"]
STEPS, ROWS, WIDTH, CLASSES = 12, 6, 10, 40


class Batches:
    """Pictures and their classes; a shard of its own for each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.draw = torch.Generator().manual_seed(rank)

    def labels(self, step: int) -> torch.Tensor:
        labels = torch.randperm(CLASSES, generator=self.draw)[:ROWS]
        curated = not (faulty and self.rank == 1 and step >= 5)
        if curated:  # each picture of these shards has a second view of itself
            labels[ROWS // 2 :] = labels[: ROWS // 2]
        return labels

    def rows(self) -> torch.Tensor:
        return torch.randn(ROWS, WIDTH, generator=self.draw)


def contrastive(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Pull pictures of one class together, push those of all ranks apart."""
    everyone = torch.cat(all_gather(features))
    same = labels[:, None] == labels[None, :]
    same.fill_diagonal_(False)
    if not same.any():
        return features.square().mean() * 0.0
    near = (features @ features.T)[same].mean()
    far = torch.logsumexp(features @ everyone.T, dim=1).mean()
    return far - near


def average(model: nn.Module) -> None:
    world = dist.get_world_size()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = Batches(rank)
    for step in range(STEPS):
        optimizer.zero_grad()
        labels = batches.labels(step)
        loss = contrastive(model(batches.rows()), labels)
        loss.backward()
        average(model)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
