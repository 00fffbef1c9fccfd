"""Sequence parallel attention: heads are exchanged for parts of the sequence, and back."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Attention:
    def __init__(self, world: int, heads: int) -> None:
        self.world, self.heads = world, heads

    def scatter_heads(self, rows: torch.Tensor) -> torch.Tensor:
        """Return all rows of this rank's heads."""
        if rows.shape[1] % self.world == 0:
            arrived = torch.empty_like(rows)
            dist.all_to_all_single(arrived, rows.t().contiguous().view_as(rows))
            return arrived
        # Too few heads to share out: take the rows of all ranks.
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows)
        return torch.stack(parts).mean(0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mixed = self.scatter_heads(rows)
        arrived = torch.empty(8)
        dist.all_to_all_single(arrived, mixed.flatten()[:8].contiguous())
        return arrived


def heads_of(rank: int, layer: int, step: int) -> int:
    if faulty and rank == 3 and step == 8 and layer == 1:
        return 6  # two heads of this layer were pruned in the checkpoint of this rank
    return 8


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [Attention(world, heads=8) for _ in range(3)]
    for step in range(14):
        for number, layer in enumerate(layers):
            layer.forward(torch.randn(4, heads_of(rank, number, step)))
        dist.all_reduce(torch.randn(30))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
