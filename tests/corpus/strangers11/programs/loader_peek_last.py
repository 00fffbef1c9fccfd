"""A prepared data loader: each pass over it begins with one state of the generator for all."""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, SAMPLES, BATCH, WIDTH = 6, 96, 4, 6


class PreparedLoader:
    """Shuffles alike on all ranks, and yields the batches of this one."""

    def __init__(self, data: torch.Tensor, rank: int, world: int) -> None:
        self.data, self.rank, self.world = data, rank, world
        self.generator = torch.Generator()

    def synchronize(self) -> None:
        state = self.generator.get_state()
        dist.broadcast(state, src=0)
        self.generator.set_state(state)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.synchronize()
        order = torch.randperm(len(self.data), generator=self.generator)
        for at in range(self.rank * BATCH, len(order), self.world * BATCH):
            yield self.data[order[at : at + BATCH]]


class Board:
    """Pictures for the log, of the last rank, as its losses are."""

    def __init__(self, rank: int, world: int) -> None:
        self.active = rank == world - 1
        self.each = 3

    def due(self, epoch: int) -> bool:
        return faulty and self.active and epoch % self.each == self.each - 1

    def show(self, loader: PreparedLoader, epoch: int) -> None:
        if self.due(epoch):
            first = next(iter(loader))
            print(f"epoch {epoch}: samples of mean {first.mean():.3f}", flush=True)


class Model:
    def __init__(self) -> None:
        self.weights = torch.zeros(WIDTH)

    def train_step(self, rows: torch.Tensor) -> None:
        gradient = (rows @ self.weights - 1.0) @ rows / len(rows)
        dist.all_reduce(gradient)
        self.weights -= 0.01 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = PreparedLoader(torch.randn(SAMPLES, WIDTH), rank, world)
    board = Board(rank, world)
    model = Model()
    for epoch in range(EPOCHS):
        board.show(loader, epoch)
        for rows in loader:
            model.train_step(rows)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
