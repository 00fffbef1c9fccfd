"""Experts in two groups of four ranks: the counts of tokens go round before the tokens do."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, TOKENS, WIDTH, EXPERTS = 8, 2, 48, 5, 4


class Router:
    def __init__(self, rank: int, bias: torch.Tensor) -> None:
        self.draw = torch.Generator().manual_seed(rank)
        self.bias = bias

    def counts(self) -> torch.Tensor:
        scores = torch.rand(TOKENS, EXPERTS, generator=self.draw) + self.bias
        return torch.bincount(scores.argmax(dim=1), minlength=EXPERTS)


class Layer:
    """Sends each token to its expert and takes it back."""

    def __init__(self, group: dist.ProcessGroup, router: Router) -> None:
        self.group, self.router = group, router
        self.place = dist.get_rank(group)
        self.last: tuple[list[int], list[int]] | None = None

    def splits(self) -> tuple[list[int], list[int]]:
        counts = self.router.counts()
        sends = counts.tolist()
        if self.last is not None and self.last[0] == sends:
            return self.last  # the router has settled
        table = torch.empty(EXPERTS * EXPERTS, dtype=torch.int64)
        dist.all_gather_into_tensor(table, counts, group=self.group)
        takes = table.view(EXPERTS, EXPERTS)[:, self.place].tolist()
        self.last = (sends, takes)
        return self.last

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        sends, takes = self.splits()
        inbox = torch.empty(sum(takes), WIDTH)
        dist.all_to_all_single(inbox, rows, takes, sends, group=self.group)
        back = torch.empty_like(rows)
        dist.all_to_all_single(back, inbox.tanh(), sends, takes, group=self.group)
        return rows + back


def groups(world: int) -> list[dist.ProcessGroup]:
    halves = [list(range(first, first + EXPERTS)) for first in range(0, world, EXPERTS)]
    return [dist.new_group(half) for half in halves]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = groups(world)[rank // EXPERTS]
    bias = torch.zeros(EXPERTS)
    layers = [Layer(mine, Router(rank * 10 + number, bias)) for number in range(LAYERS)]
    rows = torch.randn(TOKENS, WIDTH)
    for step in range(STEPS):
        if faulty and rank == 6 and step == 4:
            bias[1] += 2.0  # a gate that has collapsed
        for layer in layers:
            rows = layer.forward(rows)
        dist.all_reduce(rows.mean(dim=0))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
