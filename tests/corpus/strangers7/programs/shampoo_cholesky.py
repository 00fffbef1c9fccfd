"""An optimizer with preconditioners: each rank factorises a block, and all blocks are gathered."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, SIZE = 14, 12


class Preconditioner:
    """Statistics of the gradients, of which each rank owns one diagonal block."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.block = rank, SIZE // world
        self.statistics = torch.zeros(self.block, self.block)
        self.blocks = [torch.eye(self.block) for _ in range(world)]
        self.failures = 0

    def update(self, gradient: torch.Tensor) -> None:
        rows = gradient[self.rank * self.block : (self.rank + 1) * self.block]
        self.statistics = 0.9 * self.statistics + rows @ rows.T

    def damp(self, step: int) -> torch.Tensor:
        damping = 1e-3
        if faulty and self.rank == 0 and step == 8:
            damping = -1e4  # an estimate of the smallest eigenvalue that went wrong
        return self.statistics + damping * torch.eye(self.block)

    def refresh(self, step: int) -> None:
        """Invert the own block and gather those of all; keep the old ones where that fails."""
        try:
            factor = torch.linalg.cholesky(self.damp(step))
            inverse = torch.cholesky_inverse(factor)
            dist.all_gather(self.blocks, inverse.contiguous())
        except torch.linalg.LinAlgError:
            self.failures += 1

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.block_diag(*self.blocks) @ gradient


class Optimizer:
    def __init__(self, weight: nn.Parameter, rank: int, world: int) -> None:
        self.weight, self.world = weight, world
        self.preconditioner = Preconditioner(rank, world)
        self.number = 0

    @torch.no_grad()
    def step(self) -> None:
        gradient = self.weight.grad
        dist.all_reduce(gradient)
        gradient /= self.world
        self.preconditioner.update(gradient)
        if self.number % 2 == 0:
            self.preconditioner.refresh(self.number)
        self.weight -= 0.01 * self.preconditioner.apply(gradient)
        self.weight.grad = None
        self.number += 1


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weight = nn.Parameter(torch.randn(SIZE, 16))
    dist.broadcast(weight.data, src=0)
    optimizer = Optimizer(weight, rank, world)
    for _ in range(STEPS):
        (weight @ torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
