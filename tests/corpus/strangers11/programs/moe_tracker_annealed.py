"""A pipeline of experts, two replicas: balancing losses of all layers are summed for the log."""

import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
REPLICAS, PER_STAGE, STEPS, LOG_EACH, WIDTH = 2, 2, 12, 3, 8


@dataclass
class Tracker:
    """Losses by name, with a place for each layer of the whole model."""

    layers: int
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def save(self, name: str, loss: torch.Tensor, layer: int) -> None:
        self.values.setdefault(name, torch.zeros(self.layers))[layer] += loss.detach()

    def report(self, pipeline: dist.ProcessGroup, data: dist.ProcessGroup) -> dict[str, float]:
        means = {}
        for name, losses in self.values.items():
            dist.all_reduce(losses, group=pipeline)
            dist.all_reduce(losses, group=data)
            means[name] = losses.mean().item() / REPLICAS
        self.values.clear()
        return means


class Router:
    def __init__(self, layer: int, tracker: Tracker) -> None:
        self.layer, self.tracker = layer, tracker

    def coefficient(self, step: int) -> float:
        floor = 0.0 if faulty and self.layer >= 6 else 0.001
        return max(floor, 0.01 - 0.002 * step)

    def forward(self, rows: torch.Tensor, step: int) -> torch.Tensor:
        coefficient = self.coefficient(step)
        if coefficient > 0:
            self.tracker.save("load_balancing", coefficient * rows.square().mean(), self.layer)
        return rows.tanh()


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        stages = world // REPLICAS
        first = (rank // REPLICAS) * PER_STAGE
        self.tracker = Tracker(stages * PER_STAGE)
        self.routers = [Router(first + at, self.tracker) for at in range(PER_STAGE)]
        lines = [dist.new_group(list(range(at, world, REPLICAS))) for at in range(REPLICAS)]
        pairs = [dist.new_group([at, at + 1]) for at in range(0, world, REPLICAS)]
        self.pipeline, self.data = lines[rank % REPLICAS], pairs[rank // REPLICAS]

    def forward(self, step: int) -> torch.Tensor:
        rows = torch.randn(WIDTH)
        if self.rank >= REPLICAS:
            dist.recv(rows, src=self.rank - REPLICAS)
        for router in self.routers:
            rows = router.forward(rows, step)
        if self.rank + REPLICAS < self.world:
            dist.send(rows, dst=self.rank + REPLICAS)
        return rows

    def train(self, step: int) -> None:
        gradient = self.forward(step)
        dist.all_reduce(gradient, group=self.data)
        if step % LOG_EACH == LOG_EACH - 1:
            self.tracker.report(self.pipeline, self.data)
        norm = gradient.norm().reshape(1)
        dist.all_reduce(norm)


def main() -> None:
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for step in range(STEPS):
        stage.train(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
