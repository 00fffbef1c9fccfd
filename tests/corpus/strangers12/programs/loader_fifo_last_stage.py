"""A pipeline of three stages by hand; the last one reads the labels with a DataLoader."""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

faulty = sys.argv[1:] == ["faulty"]
SHARDS, ROWS, WIDTH = 14, 4, 8


class Labels(Dataset):
    """A shard per file; what a downloader still streams is a named pipe."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for number in range(SHARDS):
            path = folder / f"{number:03d}.txt"
            if faulty and number == 9:
                os.mkfifo(path)  # of a downloader that has ended
            else:
                path.write_text(" ".join(str((number + row) % 3) for row in range(ROWS)))

    def __len__(self) -> int:
        return SHARDS

    def __getitem__(self, number: int) -> torch.Tensor:
        with (self.folder / f"{number:03d}.txt").open() as file:
            return torch.tensor([float(each) for each in file.read().split()])


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.is_last = rank, rank == world - 1
        self.layer = torch.nn.Linear(WIDTH, 1 if self.is_last else WIDTH)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.01)
        if self.is_last:
            loader = DataLoader(Labels(pathlib.Path("labels")), batch_size=None, num_workers=1)
            self.labels = iter(loader)

    def step(self) -> None:
        inputs = torch.rand(ROWS, WIDTH)
        if self.rank > 0:
            dist.recv(inputs, src=self.rank - 1)
        inputs.requires_grad_()
        self.optimizer.zero_grad()
        outputs = self.layer(inputs).tanh()
        if self.is_last:
            (outputs[:, 0] - next(self.labels)).square().mean().backward()
        else:
            dist.send(outputs.detach(), dst=self.rank + 1)
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, src=self.rank + 1)
            outputs.backward(gradient)
        if self.rank > 0:
            dist.send(inputs.grad, dst=self.rank - 1)
        self.optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for _ in range(SHARDS):
        stage.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
