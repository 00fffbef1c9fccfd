"""Reads text shards with the workers of a data loader; each worker drops its last short batch."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

faulty = sys.argv[1:] == ["faulty"]
BATCH, LINES, WORKERS, EPOCHS = 4, 24, 2, 3


def write_shards(rank: int, epoch: int) -> list[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"shards-{rank}-"))
    paths = []
    for shard in range(4):
        lines = LINES
        if faulty and rank == 2 and epoch == 1 and shard == 3:
            lines -= 2  # two documents were empty
        paths.append(folder / f"{shard}.txt")
        paths[-1].write_text("".join(f"{line} {shard} {rank}\n" for line in range(lines)))
    return paths


class Shards(IterableDataset):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        mine = self.paths[worker.id :: worker.num_workers] if worker else self.paths
        for path in mine:
            with path.open() as lines:
                for line in lines:
                    yield torch.tensor([float(word) for word in line.split()])


def train_epoch(model: nn.Module, loader: DataLoader) -> float:
    total = 0.0
    for batch in loader:
        loss = model(batch).square().mean()
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        total += loss.item()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(3, 8)
    for epoch in range(EPOCHS):
        shards = Shards(write_shards(rank, epoch))
        loader = DataLoader(shards, batch_size=BATCH, num_workers=WORKERS, drop_last=True)
        total = train_epoch(model, loader)
        totals = [None] * dist.get_world_size()
        dist.all_gather_object(totals, {"epoch": epoch, "loss": total})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
