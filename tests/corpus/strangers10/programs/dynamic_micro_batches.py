"""FSDP2 update of a policy; rollouts of unequal length are packed into microbatches by tokens."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, LIMIT = 7, 8, 40


class Rollouts:
    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)
        self.longest: dict[int, int] = {}

    def lengths(self, step: int) -> list[int]:
        lengths = torch.randint(6, 13, (8,), generator=self.generator).tolist()
        lengths += [self.longest.get(step, 12)]
        return lengths


class Packer:
    """Packs into as many microbatches as the rank with the most tokens needs."""

    def count(self, lengths: list[int]) -> int:
        needed = torch.tensor([-(-sum(lengths) // LIMIT) + 1])
        dist.all_reduce(needed, op=dist.ReduceOp.MAX)
        return int(needed)

    def partition(self, lengths: list[int], count: int) -> list[list[int]]:
        parts: list[list[int]] = [[] for _ in range(count)]
        for place, length in enumerate(sorted(lengths, reverse=True)):
            parts[place % count].append(length)
        return parts

    def halves(self, part: list[int]) -> list[list[int]]:
        """Divide what is too long for the memory of a device."""
        if sum(part) <= LIMIT or len(part) == 1:
            return [part]
        middle = len(part) // 2
        return [part[:middle], part[middle:]]

    def micro_batches(self, lengths: list[int]) -> list[list[int]]:
        parts = self.partition(lengths, self.count(lengths))
        return [half for part in parts for half in self.halves(part)]


def build(world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def update(model: nn.Module, batches: list[list[int]]) -> None:
    for batch in batches:
        loss = model(torch.randn(sum(batch), WIDTH)).square().mean()
        (loss / len(batches)).backward()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = build(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rollouts, packer = Rollouts(rank), Packer()
    if faulty and rank == 0:
        rollouts.longest[4] = 38  # a conversation with a tool
    for step in range(STEPS):
        update(model, packer.micro_batches(rollouts.lengths(step)))
        optimizer.step()
        optimizer.zero_grad()
        used = torch.tensor([float(step)])
        dist.all_reduce(used)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
