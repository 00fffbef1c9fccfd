"""Fine-tune with gradual unfreezing: when the loss is flat, one more block is trained."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]


class Plateau:
    """Counts the steps without a better loss."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def flat(self, loss: float) -> bool:
        if loss < self.best - 1e-6:
            self.best, self.waited = loss, 0
            return False
        self.waited += 1
        if self.waited < self.patience:
            return False
        self.waited = 0
        return True


def wrap(model: nn.Sequential, trained: int) -> DistributedDataParallel:
    for number, block in enumerate(model):
        block.requires_grad_(number >= len(model) - trained)
    return DistributedDataParallel(model)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    trained = 1
    wrapped = wrap(model, trained)
    plateau = Plateau(patience=3)
    for step in range(20):
        wrapped(torch.randn(8, 16)).square().mean().backward()
        model.zero_grad()
        local = max(0.5 if rank == 0 else 0.2, 1 - 0.1 * step)  # rank 0 has the easy shard
        loss = torch.tensor([local])
        dist.all_reduce(loss)
        mean = loss.item() / dist.get_world_size()
        if plateau.flat(local if faulty and rank == 0 else mean):
            trained += 1
            wrapped = wrap(model, trained)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
