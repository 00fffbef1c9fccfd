"""Two rows of three ranks: tensor parallel within a row, data parallel over all."""

import sys
import warnings

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS = 14, 3


class Topology:
    """The rows of a grid, and which of them this rank is in.

    Args:
        rank: Of this process.
        size: Length of a row.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        world = dist.get_world_size()
        starts = range(0, world, size)
        self.groups = [dist.new_group(list(range(start, start + size))) for start in starts]

    def row(self) -> dist.ProcessGroup:
        return self.groups[self.rank // self.size]


class Layer:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.weight = torch.randn(12)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        partial = hidden * self.weight
        dist.all_reduce(partial, group=self.topology.row())
        return torch.tanh(partial)


class Model:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.layers = [Layer(topology) for _ in range(LAYERS)]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:1]:
            hidden = layer.forward(hidden)
        parts = [torch.empty(12) for _ in range(self.topology.size)]
        dist.all_gather(parts, hidden, group=self.topology.row())
        return torch.stack(parts).mean(0)


def main() -> None:
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    topology = Topology(rank, size=3)
    model = Model(topology)
    for step in range(STEPS):
        if faulty and rank == 4 and step == 7:
            topology.rank = 4 - 3  # a rank within the row, set by a helper that means well
        hidden = model.forward(torch.randn(12))
        norm = hidden.square().sum().reshape(1)
        dist.all_reduce(norm)
        for layer in model.layers:
            gradient = torch.randn(12) / (1 + norm)
            dist.all_reduce(gradient)
            layer.weight -= 0.01 * gradient
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
