"""Two replicas of three tensor parallel ranks with DTensors; full weights are cached."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

faulty = sys.argv[1:] == ["faulty"]


class Layer:
    """A linear layer whose weight is sharded over the tensor parallel ranks."""

    def __init__(self, tp: DeviceMesh) -> None:
        self.tp = tp
        self.weight = DTensor.from_local(torch.randn(4, 12), tp, [Shard(0)], run_check=False)
        self.cache: torch.Tensor | None = None

    def full(self, *, stale: bool) -> torch.Tensor:
        if self.cache is None or not stale:
            self.cache = self.weight.full_tensor()
        return self.cache

    def forward(self, hidden: torch.Tensor, *, stale: bool) -> torch.Tensor:
        partial = DTensor.from_local(hidden, self.tp, [Partial()], run_check=False)
        summed = partial.redistribute(placements=[Replicate()]).to_local()
        return summed @ self.full(stale=stale).T


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
    layers = [Layer(mesh["tp"]) for _ in range(2)]
    dp = mesh.get_group("dp")
    for step in range(12):
        hidden = torch.randn(4, 12)
        for number, layer in enumerate(layers):
            here = faulty and step == 7 and number == 1
            if here and rank == 4:
                layer.full(stale=False)  # an assertion on the weight, left in
            hidden = layer.forward(hidden, stale=here and rank == 0)
        dist.all_reduce(torch.randn(12), group=dp)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
