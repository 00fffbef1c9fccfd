"""Detection: a metric keeps lists of values on each rank and gathers them after each epoch."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, BATCHES = 8, 6


class State:
    """A list of tensors that is put together over all ranks."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.values: list[torch.Tensor] = []

    def gather(self) -> torch.Tensor:
        rows = torch.cat(self.values)
        world = dist.get_world_size()
        counts = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([len(rows)]))
        most = int(max(counts))
        padded = torch.zeros(most, self.width)
        padded[: len(rows)] = rows
        parts = [torch.empty(most, self.width) for _ in range(world)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])


class Detections:
    def __init__(self) -> None:
        self.states = {"scores": State(1), "misses": State(2), "boxes": State(4)}

    def update(self, scores: torch.Tensor, boxes: torch.Tensor) -> None:
        self.states["scores"].values.append(scores)
        if len(boxes):
            self.states["boxes"].values.append(boxes)
        self.states["misses"].values.append(torch.rand(len(scores), 2))

    def compute(self) -> dict[str, float]:
        means = {}
        for name, state in self.states.items():
            if not state.values:
                means[name] = 0.0
                continue
            means[name] = state.gather().mean().item()
            state.values.clear()
        return means


def detect(rank: int, epoch: int, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    found = rng.randint(1, 5)
    if faulty and rank == 0 and epoch == 5:  # a night scene: nothing above the threshold
        found = 0
    return torch.rand(6, 1), torch.rand(found, 4)


def train_epoch(weights: torch.Tensor) -> None:
    for _ in range(BATCHES):
        gradient = torch.randn_like(weights)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    weights = torch.zeros(30)
    metric = Detections()
    for epoch in range(EPOCHS):
        train_epoch(weights)
        for _ in range(3):
            metric.update(*detect(rank, epoch, rng))
        metric.compute()
        seen = torch.ones(2)
        dist.all_reduce(seen)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
