"""A pipeline of five stages that trains, and evaluates with the forward pass alone."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
MICROS = 3


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.before = rank - 1 if rank else None
        self.after = rank + 1 if rank < world - 1 else None
        self.training = True
        self.kept: list[torch.Tensor] = []

    def forward(self) -> None:
        rows = torch.randn(2, 12)
        if self.before is not None:
            dist.recv(rows, src=self.before)
        if self.training:
            self.kept.append(rows)
        if self.after is not None:
            dist.send(torch.tanh(rows), dst=self.after)

    def backward(self) -> None:
        gradient = torch.randn_like(self.kept.pop(0))
        if self.after is not None and self.training:
            dist.recv(gradient, src=self.after)
        if self.before is not None:
            dist.send(gradient, dst=self.before)

    def run(self) -> None:
        for _ in range(MICROS):
            self.forward()
        while self.kept:
            self.backward()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    for step in range(15):
        stage.training = step % 4 != 3
        if faulty and rank == 2 and step == 11:
            stage.kept.append(torch.zeros(2, 12))  # rows that a hook for pictures has kept
        stage.run()
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
