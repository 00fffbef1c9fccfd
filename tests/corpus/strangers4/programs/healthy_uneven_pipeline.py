"""A pipeline whose middle stage is much slower than the others, and slower with each microbatch."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
PACE = 5.0 if faulty else 0.05
MICROS, STEPS = 4, 6 if faulty else 3


def compute(seconds: float) -> torch.Tensor:
    end = time.monotonic() + seconds
    rows = torch.randn(64, 64)
    while time.monotonic() < end:
        rows = torch.tanh(rows @ rows.t() / 64)
    return rows[:2]


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.last = rank, world - 1
        self.pace = PACE if rank == 2 else PACE / 50

    def forward(self, micro: int) -> None:
        rows = torch.empty(2, 64)
        if self.rank > 0:
            dist.recv(rows, src=self.rank - 1)
        rows = compute(self.pace * (1 + micro / 2))
        if self.rank < self.last:
            dist.send(rows.contiguous(), dst=self.rank + 1)

    def backward(self) -> None:
        gradient = torch.empty(2, 64)
        if self.rank < self.last:
            dist.recv(gradient, src=self.rank + 1)
        if self.rank > 0:
            dist.send(gradient, dst=self.rank - 1)


def main() -> None:
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for _ in range(STEPS):
        for micro in range(MICROS):
            stage.forward(micro)
        for _ in range(MICROS):
            stage.backward()
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
