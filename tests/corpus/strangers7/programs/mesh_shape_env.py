"""Trains in two phases; the second one makes a mesh of another shape than the first."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

faulty = sys.argv[1:] == ["faulty"]
STEPS = 6


class Plan:
    """The layout of each phase, out of a file on each node."""

    def __init__(self, rank: int) -> None:
        path = Path(tempfile.gettempdir(), f"plan-{rank}.json")
        shards = [2, 2 if faulty and rank == 4 else 3]
        path.write_text(json.dumps({"shards": shards, "lr": [0.1, 0.01]}))
        self.content = json.loads(path.read_text())

    def mesh(self, phase: int) -> DeviceMesh:
        world = dist.get_world_size()
        shards = self.content["shards"][phase]
        replicas = world // shards
        return init_device_mesh(
            "cpu", (replicas, shards), mesh_dim_names=(f"replicate{phase}", f"shard{phase}")
        )

    def rate(self, phase: int) -> float:
        return self.content["lr"][phase]


class Phase:
    def __init__(self, plan: Plan, number: int) -> None:
        self.rate = plan.rate(number)
        mesh = plan.mesh(number)
        self.replicate, self.shard = mesh.get_group(0), mesh.get_group(1)
        self.weights = torch.zeros(12)

    def step(self) -> None:
        parts = [torch.empty(12) for _ in range(dist.get_world_size(self.shard))]
        dist.all_gather(parts, self.weights, group=self.shard)
        gradient = torch.randn(12) + torch.stack(parts).mean(0)
        dist.all_reduce(gradient, group=self.replicate)
        self.weights -= self.rate * gradient

    def run(self) -> torch.Tensor:
        for step in range(STEPS):
            self.step()
            if step % 3 == 2:
                norm = self.weights.norm().reshape(1)
                dist.all_reduce(norm)
        return self.weights


def main() -> None:
    dist.init_process_group("gloo")
    plan = Plan(dist.get_rank())
    weights = torch.zeros(12)
    for number in range(2):
        phase = Phase(plan, number)
        phase.weights += weights
        weights = phase.run()
        dist.broadcast(weights, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
