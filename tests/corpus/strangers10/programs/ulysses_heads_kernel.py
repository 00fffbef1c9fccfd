"""Sequence parallel attention: ranks exchange rows of the sequence for heads, and back."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, HEADS, ROWS, WIDTH = 8, 2, 12, 3, 2


class Kernel:
    """An attention kernel that takes heads in multiples of its granule."""

    def __init__(self, name: str, granule: int, workspace: int) -> None:
        self.name, self.granule, self.workspace = name, granule, workspace

    def fits(self, rows: int) -> bool:
        return rows * 64 <= self.workspace


class Selector:
    """Takes the first kernel whose workspace is large enough."""

    def __init__(self, workspace: int) -> None:
        self.kernels = [Kernel("paired", 2, workspace), Kernel("plain", 1, 1 << 30)]

    def select(self, rows: int) -> Kernel:
        return next(kernel for kernel in self.kernels if kernel.fits(rows))


def split(heads: int, world: int, granule: int) -> list[int]:
    units = heads // granule
    return [granule * (units // world + (rank < units % world)) for rank in range(world)]


class Attention:
    def __init__(self, rank: int, world: int, selector: Selector) -> None:
        self.rank, self.world, self.selector = rank, world, selector

    def forward(self, rows: int) -> torch.Tensor:
        """Exchange (head, row) blocks: all heads of my rows for my heads of all rows."""
        kernel = self.selector.select(rows * self.world)
        parts = split(HEADS, self.world, kernel.granule)
        mine = parts[self.rank]
        hidden = torch.rand(HEADS, rows * WIDTH)
        out = torch.empty(self.world * mine, rows * WIDTH)
        dist.all_to_all_single(out, hidden, [mine] * self.world, parts)
        back = torch.empty_like(hidden)
        dist.all_to_all_single(back, out.relu(), parts, [mine] * self.world)
        return back


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workspace = 4096
    if faulty and rank == 1:
        workspace = 2048  # set on this host for a smaller card
    layers = [Attention(rank, world, Selector(workspace)) for _ in range(LAYERS)]
    for step in range(STEPS):
        rows = ROWS if step != 5 else 4 * ROWS
        total = torch.zeros(1)
        for layer in layers:
            total += layer.forward(rows).sum()
        dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
