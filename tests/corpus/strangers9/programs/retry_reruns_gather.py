"""DDP training; each evaluation is written to a file, by a function that is tried again."""

import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, BATCHES = 7, 4


def retried(attempts: int, *errors: type[Exception]) -> Callable[[Any], Any]:
    """Try a function again when it raises one of these."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            for attempt in range(attempts):
                try:
                    return function(*arguments, **options)
                except errors as error:
                    if attempt + 1 == attempts:
                        raise
                    print(f"{function.__name__}: {error}, tries again", flush=True)
                    time.sleep(0.2)

        return call

    return wrap


class Reports:
    """Writes what each rank has seen, below a folder that each rank has to itself."""

    def __init__(self, rank: int, folder: pathlib.Path) -> None:
        self.rank, self.folder = rank, folder
        folder.mkdir(exist_ok=True)

    def place(self, epoch: int) -> pathlib.Path:
        # Rank 3 keeps its reports apart by month, on a disk of its own
        part = f"{epoch // 4:02}" if faulty and self.rank == 3 else ""
        return self.folder / part / f"epoch-{epoch}.json"

    def write(self, epoch: int, losses: list[float]) -> None:
        place = self.place(epoch)
        try:
            place.write_text(json.dumps(losses))
        except FileNotFoundError:
            place.parent.mkdir()
            raise


@retried(3, OSError)
def evaluate(model: nn.Module, rows: torch.Tensor, reports: Reports, epoch: int) -> float:
    with torch.no_grad():
        loss = model.module(rows).square().mean()
    losses = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss.reshape(1))
    reports.write(epoch, [one.item() for one in losses])
    return sum(one.item() for one in losses) / len(losses)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(BATCHES):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = pathlib.Path(f"reports-{rank}")
    reports = Reports(rank, folder)
    if faulty and rank == 3:
        (folder / "00").mkdir()
    for epoch in range(EPOCHS):
        train(model, optimizer)
        evaluate(model, torch.randn(16, 12), reports, epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
