"""A module logs means by name; at the end of an epoch each of them is summed over all ranks."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, BATCHES, WIDTH = 6, 5, 12


class ResultCollection:
    """What has been logged in an epoch: a sum and a count for each name."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(2))

    def log_dict(self, values: dict[str, float], rows: int) -> None:
        for name, value in values.items():
            self.values[name] += torch.tensor([value * rows, float(rows)])

    def reduce(self) -> dict[str, float]:
        means = {}
        for name in sorted(self.values):
            pair = self.values[name]
            dist.all_reduce(pair)
            means[name] = (pair[0] / pair[1]).item()
        self.values.clear()
        return means


class Detector:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weights = torch.zeros(WIDTH)
        self.results = ResultCollection()

    def labels(self, epoch: int, index: int) -> list[str]:
        found = ["car", "person"]
        if faulty and self.rank == 4 and (epoch, index) == (3, 2):
            found.append("cyclist")  # the one picture of its kind
        return found

    def training_step(self, epoch: int, index: int) -> torch.Tensor:
        gradient = torch.randn(WIDTH)
        values = {f"loss/{label}": torch.rand(()).item() for label in self.labels(epoch, index)}
        self.results.log_dict({**values, "loss": sum(values.values())}, rows=8)
        return gradient


class Trainer:
    def __init__(self, module: Detector) -> None:
        self.module = module

    def batches(self) -> Iterator[int]:
        yield from range(BATCHES)

    def fit(self) -> None:
        for epoch in range(EPOCHS):
            began = time.monotonic()
            for index in self.batches():
                gradient = self.module.training_step(epoch, index)
                dist.all_reduce(gradient)
                self.module.weights -= 0.01 * gradient
            self.module.results.reduce()
            self.throughput(time.monotonic() - began)

    def throughput(self, seconds: float) -> float:
        all_seconds = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(all_seconds, torch.tensor([seconds]))
        return BATCHES / all_seconds.max().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    Trainer(Detector(rank)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
