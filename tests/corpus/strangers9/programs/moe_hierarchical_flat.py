"""Experts over two hosts of three: tokens go within the host first and then to the other host."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, HOST, WIDTH = 8, 2, 3, 10


class Exchange:
    """All to all, in two stages for much and in one for little."""

    def __init__(self, rank: int, world: int, threshold: int) -> None:
        self.rank, self.world, self.threshold = rank, world, threshold
        self.inner = self.outer = None
        for first in range(0, world, HOST):
            group = dist.new_group(list(range(first, first + HOST)))
            self.inner = group if rank // HOST == first // HOST else self.inner
        for place in range(HOST):
            group = dist.new_group(list(range(place, world, HOST)))
            self.outer = group if rank % HOST == place else self.outer

    def staged(self, rows: torch.Tensor) -> torch.Tensor:
        between, out = torch.empty_like(rows), torch.empty_like(rows)
        dist.all_to_all_single(between, rows, group=self.inner)
        dist.all_to_all_single(out, between, group=self.outer)
        return out

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows)
        return out

    def __call__(self, rows: torch.Tensor, used: int) -> torch.Tensor:
        return self.staged(rows) if used > self.threshold else self.flat(rows)


class Router:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def tokens(self, step: int, layer: int) -> int:
        """How many slots hold a token; all batches are short ones each fourth step."""
        if step % 4 == 3:
            return 4
        if faulty and (self.rank, step, layer) == (4, 6, 1):
            return 7  # a document that ends early
        return 12 + (step * 5 + layer + self.rank) % 6


def layer_forward(exchange: Exchange, router: Router, step: int, layer: int) -> torch.Tensor:
    rows = torch.randn(exchange.world * 3, WIDTH)
    used = router.tokens(step, layer)
    rows[used:] = 0
    arrived = exchange(rows, used)
    return exchange(arrived.tanh(), used)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    exchange = Exchange(rank, world, threshold=8)
    router = Router(rank)
    for step in range(STEPS):
        total = torch.zeros(1)
        for layer in range(LAYERS):
            total += layer_forward(exchange, router, step, layer).sum()
        dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
