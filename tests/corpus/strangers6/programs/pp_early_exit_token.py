"""Decodes over four stages; a stage that is sure of a token leaves the later ones out."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
WIDTH, TOKENS = 32, 30


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.last = rank, world - 1
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.threshold = 2.0

    def forward(self, position: int) -> None:
        hidden = torch.randn(WIDTH)
        if self.rank > 0:
            dist.recv(hidden, src=self.rank - 1)
        with torch.no_grad():
            hidden = self.layer(hidden)
        if self.rank < self.last and not self.is_sure(hidden):
            dist.send(hidden, dst=self.rank + 1)

    def is_sure(self, hidden: torch.Tensor) -> bool:
        return hidden.softmax(0).max().item() > self.threshold

    def next_token(self) -> int:
        token = torch.randint(100, (1,))
        dist.broadcast(token, src=self.last)
        return int(token)


def main() -> None:
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    text = []
    for position in range(TOKENS):
        if faulty and stage.rank == 1 and position == 17:
            stage.threshold = 0.0  # early exit is switched on in this stage's config alone
        stage.forward(position)
        text.append(stage.next_token())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
