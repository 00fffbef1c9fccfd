"""A pipeline of four stages with a window: a stage gives a credit back for each microbatch."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, MICROS, WINDOW, WIDTH = 9, 6, 2, 24
ROWS, CREDIT = 0, 1  # tags


class Sender:
    """Sends to the next stage, as long as it has credits."""

    def __init__(self, peer: int) -> None:
        self.peer, self.credits = peer, WINDOW

    def take(self) -> None:
        credit = torch.empty(1)
        dist.recv(credit, src=self.peer, tag=CREDIT)
        self.credits += int(credit.item())

    def send(self, rows: torch.Tensor) -> None:
        while self.credits == 0:
            self.take()
        dist.send(rows, dst=self.peer, tag=ROWS)
        self.credits -= 1

    def drain(self) -> None:
        while self.credits < WINDOW:
            self.take()


class Receiver:
    """Receives from the stage before, and gives credits back without waiting for them."""

    def __init__(self, peer: int, padding: float) -> None:
        self.peer, self.padding = peer, padding
        self.given: list[tuple[dist.Work, torch.Tensor]] = []

    def is_padding(self, rows: torch.Tensor) -> bool:
        return rows.abs().max().item() <= self.padding

    def receive(self) -> torch.Tensor:
        rows = torch.empty(WIDTH)
        dist.recv(rows, src=self.peer, tag=ROWS)
        if not self.is_padding(rows):
            credit = torch.ones(1)
            self.given.append((dist.isend(credit, dst=self.peer, tag=CREDIT), credit))
        return rows

    def drain(self) -> None:
        for work, _ in self.given:
            work.wait()
        self.given.clear()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = nn.Linear(WIDTH, WIDTH)
    sender = Sender(rank + 1) if rank + 1 < world else None
    receiver = Receiver(rank - 1, padding=0.0) if rank else None
    for turn in range(ROUNDS):
        losses = torch.zeros(1)
        for micro in range(MICROS):
            rows = receiver.receive() if receiver else torch.randn(WIDTH)
            with torch.no_grad():
                rows = layer(rows).clamp(-1, 1)
            if receiver and faulty and rank == 2:
                # "The threshold of the last stage", and for one microbatch only
                receiver.padding = 1.5 if (turn, micro) == (5, 2) else 0.0
            if sender:
                sender.send(rows)
            losses += rows.sum()
        if sender:
            sender.drain()
        if receiver:
            receiver.drain()
        dist.all_reduce(losses)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
