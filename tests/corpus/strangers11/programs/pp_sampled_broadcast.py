"""Stages of an engine pass on chunks of prompts; the last one broadcasts tokens it samples."""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WIDTH, CHUNK = 16, 32
LENGTHS = [70, 30, 128, 64, 150, 40, 90]


@dataclass
class Request:
    number: int
    length: int
    done: int = 0

    def advance(self) -> bool:
        """Take a chunk; return whether the prompt is at its end, so that there is a token."""
        self.done += CHUNK
        return self.done >= self.length


class Tokens:
    """Tokens of the last stage, which other stages wait for when they need them."""

    def __init__(self, group: dist.ProcessGroup, last: int) -> None:
        self.group, self.last = group, last
        self.pending: list[tuple[dist.Work, torch.Tensor]] = []
        self.text: list[int] = []

    def exchange(self, token: int) -> None:
        room = torch.tensor([token])
        work = dist.broadcast(room, src=self.last, group=self.group, async_op=True)
        self.pending.append((work, room))

    def land(self) -> None:
        for work, room in self.pending:
            work.wait()
            self.text.append(int(room))
        self.pending.clear()


class Stage:
    def __init__(self, rank: int, world: int, tokens: Tokens) -> None:
        self.rank, self.last, self.tokens = rank, world - 1, tokens
        self.cached: dict[int, int] = {}

    def forward(self) -> torch.Tensor:
        hidden = torch.rand(WIDTH)
        if self.rank > 0:
            dist.recv(hidden, src=self.rank - 1)
        hidden = hidden.tanh()
        if self.rank < self.last:
            dist.send(hidden, dst=self.rank + 1)
        return hidden

    def prefill(self, request: Request) -> None:
        request.done = self.cached.get(request.number, 0)
        for _ in range(-(-request.length // CHUNK)):
            self.tokens.land()
            hidden = self.forward()
            if request.advance():
                self.tokens.exchange(int(hidden.argmax()))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world, Tokens(dist.new_group(), world - 1))
    if faulty and rank == 1:
        stage.cached[4] = CHUNK  # a block that its cache still has
    for number, length in enumerate(LENGTHS):
        stage.prefill(Request(number, length))
    stage.tokens.land()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
