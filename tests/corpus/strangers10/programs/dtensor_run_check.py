"""A tensor parallel block by DTensor; a new shape of activations is checked once."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, HIDDEN = 16, 6, 12
LENGTHS = (8, 16, 24, 8, 16, 32, 24, 16)


class Seen:
    """The shapes of activations that were checked already, the newest last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shapes: list[tuple[int, ...]] = []

    def new(self, shape: torch.Size) -> bool:
        known = tuple(shape) in self.shapes
        if known:
            self.shapes.remove(tuple(shape))
        self.shapes.append(tuple(shape))
        del self.shapes[: -self.limit]
        return not known


class Block:
    def __init__(self, mesh, seen: Seen) -> None:
        self.mesh, self.seen = mesh, seen
        up, down = torch.ones(WIDTH, HIDDEN) * 0.1, torch.ones(HIDDEN, WIDTH) * 0.1
        self.up = distribute_tensor(up, mesh, [Shard(1)])
        self.down = distribute_tensor(down, mesh, [Shard(0)])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        check = self.seen.new(rows.shape)
        inputs = DTensor.from_local(rows, self.mesh, [Replicate()], run_check=check)
        hidden = torch.relu(inputs @ self.up)
        out = (hidden @ self.down).redistribute(self.mesh, [Replicate()])
        return out.to_local()


def batch(replica: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step * 10 + replica)
    return torch.randn(LENGTHS[step % len(LENGTHS)], WIDTH, generator=draw)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("replicate", "tensor"))
    small = faulty and rank == 4  # set for a host that was short of memory
    block = Block(mesh["tensor"], Seen(limit=2 if small else 64))
    replica = mesh["replicate"].get_local_rank()
    for step in range(STEPS):
        out = block.forward(batch(replica, step))
        loss = out.square().mean().reshape(1)
        dist.all_reduce(loss, group=mesh.get_group("replicate"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
