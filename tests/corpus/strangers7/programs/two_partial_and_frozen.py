"""Two tensor parallel groups of three: sharded weights as DTensors, gradients summed by layer."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS = 12, 4


class Weights:
    """Parts of weights, and what each part is of the whole."""

    def __init__(self, rank: int, mesh: object) -> None:
        self.rank, self.mesh = rank, mesh
        self.parts = {name: torch.randn(4, 6) for name in ("query", "output")}
        self.placements: dict[str, Placement] = dict.fromkeys(self.parts, Shard(0))

    def load(self, step: int) -> None:
        """Take the layout of a new version of the weights."""
        if faulty and self.rank == 2 and step == 7:
            self.placements["output"] = Partial()

    def whole(self, name: str) -> torch.Tensor:
        placement = self.placements[name]
        weight = DTensor.from_local(self.parts[name], self.mesh, [placement], run_check=False)
        return weight.redistribute(placements=[Replicate()]).to_local()


class Gradients:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.frozen = 0

    def freeze(self, step: int) -> None:
        if faulty and self.rank == 5 and step == 5:
            self.frozen = 2  # as its list of adapters says

    def reduce(self) -> None:
        for layer in range(LAYERS):
            if layer < self.frozen:
                continue
            dist.all_reduce(torch.randn(10), group=self.group)

    def norm(self) -> float:
        norms = [torch.empty(1) for _ in range(3)]
        dist.all_gather(norms, torch.rand(1), group=self.group)
        return torch.cat(norms).norm().item()


class Trainer:
    def __init__(self, rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "tensor"))
        self.group, self.data = mesh.get_group("tensor"), mesh.get_group("data")
        self.weights = Weights(rank, mesh["tensor"])
        self.gradients = Gradients(rank, self.group)

    def step(self, step: int) -> None:
        self.weights.load(step)
        rows = torch.randn(3, 6)
        for name in self.weights.parts:
            rows = rows + self.weights.whole(name).mean(0)
        self.gradients.freeze(step)
        self.gradients.reduce()
        self.gradients.norm()
        if step in (3, 11):
            dist.all_reduce(rows, group=self.data)


def main() -> None:
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for step in range(STEPS):
        trainer.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
