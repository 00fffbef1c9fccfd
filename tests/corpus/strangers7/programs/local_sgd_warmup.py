"""Local SGD: gradients are summed during the warmup, then weights are averaged now and then."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

faulty = sys.argv[1:] == ["faulty"]
STEPS, PERIOD = 24, 4


def read_recipe(rank: int) -> dict[str, int]:
    """Read this node's recipe; one that took part in an earlier job knows how warm it is."""
    path = Path(tempfile.gettempdir(), f"recipe-{rank}.json")
    warm = 2 if faulty and rank == 1 else 0
    path.write_text(json.dumps({"warmup": 8, "already_warm": warm, "period": PERIOD}))
    return json.loads(path.read_text())


class Monitor:
    """Loss of all ranks, and the spread of their weights."""

    def __init__(self, world: int) -> None:
        self.losses = [torch.empty(1) for _ in range(world)]
        self.lines: list[str] = []

    def record(self, step: int, loss: torch.Tensor, weight: torch.Tensor) -> None:
        dist.all_gather(self.losses, loss.detach().reshape(1))
        highest = weight.detach().norm().reshape(1)
        dist.reduce(highest, dst=0, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            mean = torch.cat(self.losses).mean().item()
            self.lines.append(f"{step} {mean:.4f} {highest.item():.4f}")


def sum_gradients(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def train(rank: int, world: int) -> Monitor:
    recipe = read_recipe(rank)
    warmup = recipe["warmup"] - recipe["already_warm"]
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    averager = PeriodicModelAverager(period=recipe["period"], warmup_steps=warmup)
    monitor = Monitor(world)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        if step < 4:
            sum_gradients(model, world)
        optimizer.step()
        averager.average_parameters(model.parameters())
        monitor.record(step, loss, model[0].weight)
    return monitor


def main() -> None:
    dist.init_process_group("gloo")
    monitor = train(dist.get_rank(), dist.get_world_size())
    dist.barrier()
    if monitor.lines:
        Path(tempfile.gettempdir(), "log.txt").write_text("\n".join(monitor.lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
