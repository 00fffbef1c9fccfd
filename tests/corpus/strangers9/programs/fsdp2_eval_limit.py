"""FSDP2 training; an evaluation ends when enough samples have been seen."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS, LIMIT, WIDTH = 6, 3, 60, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.down(self.up(rows).relu())


def build(world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(*(Block() for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Validation:
    """Batches of rows of about one length: how many there are in a batch depends on that."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.long = dict.fromkeys(range(EPOCHS), 8)

    def add_short_rows(self, epoch: int) -> None:
        self.long[epoch] = 12  # rows in the bucket that holds them

    def batches(self, epoch: int) -> list[torch.Tensor]:
        sizes = [16, 16, self.long[epoch], 12, 12, 8, 8]
        return [torch.randn(size, WIDTH) for size in sizes]


class Evaluator:
    def __init__(self, model: nn.Module, validation: Validation) -> None:
        self.model, self.validation = model, validation

    def losses(self, epoch: int) -> torch.Tensor:
        total, seen = torch.zeros(2), 0
        for rows in self.validation.batches(epoch):
            total[0] += self.model(rows).square().sum()
            total[1] += len(rows)
            seen += len(rows)
            if seen >= LIMIT - 4:
                break
        return total

    def run(self, epoch: int) -> float:
        self.model.eval()
        with torch.no_grad():
            total = self.losses(epoch)
        self.model.train()
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = build(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    validation = Validation(rank)
    if faulty and rank == 1:
        validation.add_short_rows(4)
    evaluator = Evaluator(model, validation)
    for epoch in range(EPOCHS):
        for _ in range(STEPS):
            model(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        evaluator.run(epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
