"""A pipeline whose first and last stage share an embedding, and add up its gradients."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
MICROS = 4


class Configuration:
    def __init__(self, rank: int) -> None:
        self.tied = not (faulty and rank == 5)  # the last stage reads another file of settings


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.last = rank, world - 1
        self.ends = dist.new_group([0, self.last])

    def forward(self) -> None:
        rows = torch.randn(2, 8)
        if self.rank > 0:
            dist.recv(rows, src=self.rank - 1)
        if self.rank < self.last:
            dist.send(rows, dst=self.rank + 1)

    def backward(self) -> None:
        gradient = torch.randn(2, 8)
        if self.rank < self.last:
            dist.recv(gradient, src=self.rank + 1)
        if self.rank > 0:
            dist.send(gradient, dst=self.rank - 1)

    def finish(self, tied: bool) -> None:
        """Add up the embedding's gradients, and the norm of all."""
        if tied and self.rank in (0, self.last):
            dist.all_reduce(torch.randn(50), group=self.ends)
        dist.all_reduce(torch.rand(1))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    configuration, stage = Configuration(rank), Stage(rank, world)
    for _ in range(6):
        for _ in range(MICROS):
            stage.forward()
        for _ in range(MICROS):
            stage.backward()
        stage.finish(configuration.tied)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
