"""An optimizer that makes updates orthogonal: each rank works out a part, and all gather them."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, LAYERS = 10, 6, 8


def orthogonal(matrix: torch.Tensor, rounds: int = 4) -> torch.Tensor:
    x: torch.Tensor = matrix / (matrix.norm() + 1e-7)
    for _ in range(rounds):
        x = 1.5 * x - 0.5 * x @ x.t() @ x
    return x


class Muon:
    """Parameters are dealt out to the ranks, as many at a time as there are ranks."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate = parameters, rate
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def step(self) -> None:
        ready = [parameter for parameter in self.parameters if parameter.grad is not None]
        for first in range(0, len(ready), self.world):
            part = ready[first : first + self.world]
            update = torch.zeros(WIDTH, WIDTH)
            if self.rank < len(part):
                gradient = part[self.rank].grad
                assert gradient is not None
                update = orthogonal(gradient)
            updates = [torch.empty(WIDTH, WIDTH) for _ in range(self.world)]
            dist.all_gather(updates, update)
            for parameter, one in zip(part, updates, strict=False):
                parameter.sub_(one, alpha=self.rate)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class Model(nn.Module):
    """A chain of layers, and one more for pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.pictures = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, text: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            text = layer(text).tanh()
        if len(pictures):
            text = text + self.pictures(pictures).mean(dim=0)
        return text.square().mean()


def average(model: nn.Module) -> None:
    """Sum gradients in one buffer, with zeros where there are none."""
    parameters = list(model.parameters())
    rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    buffer = torch.cat([row.flatten() for row in rows])
    dist.all_reduce(buffer)
    parts = torch.split(buffer, [row.numel() for row in rows])
    for parameter, part in zip(parameters, parts, strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    optimizer = Muon(list(model.parameters()), rate=0.01)
    for step in range(STEPS):
        count = 0 if faulty and rank == 1 and step == 5 else 2 + (rank + step) % 3
        model(torch.randn(3, WIDTH), torch.randn(count, WIDTH)).backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
