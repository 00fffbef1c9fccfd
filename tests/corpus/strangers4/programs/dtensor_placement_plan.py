"""Tensor parallel layers as DTensors; a plan says how each weight lies on the mesh."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

faulty = sys.argv[1:] == ["faulty"]
NAMES = ("query", "key", "output")


class Model:
    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.weights: dict[str, DTensor] = {}

    def load(self, plan: dict[str, Placement]) -> None:
        for name, placement in plan.items():
            rows = 8 if isinstance(placement, Replicate) else 8 // self.mesh.size()
            local = torch.randn(rows, 6)
            self.weights[name] = DTensor.from_local(local, self.mesh, [placement], run_check=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for weight in self.weights.values():
            whole = weight.redistribute(placements=[Replicate()]).to_local()
            rows = rows @ whole.t() @ whole
        return rows


def plan_of(rank: int, reloaded: bool) -> dict[str, Placement]:
    plan: dict[str, Placement] = dict.fromkeys(NAMES, Shard(0))
    if faulty and reloaded and rank == 1:
        plan["key"] = Replicate()  # an older plan lies on the disk of this host
    return plan


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Model(init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)))
    model.load(plan_of(rank, reloaded=False))
    for step in range(12):
        if step == 7:
            model.load(plan_of(rank, reloaded=True))
        rows = model.forward(torch.randn(2, 6))
        dist.all_reduce(rows)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
