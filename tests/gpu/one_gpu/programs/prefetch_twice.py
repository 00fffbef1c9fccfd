"""Weights are gathered ahead on a side stream; one rank gathers those of one layer twice."""

import contextlib

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, cuda, device, world


class Prefetcher:
    def __init__(self) -> None:
        self.group = dist.new_group()
        self.stream = torch.cuda.Stream() if cuda else None
        self.shards = [torch.ones(size, device=device) for size in (SMALL, LARGE)]
        self.whole = [torch.empty(len(one) * world, device=device) for one in self.shards]

    def start(self, layer: int) -> dist.Work:
        aside = torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()
        with aside:
            return dist.all_gather_into_tensor(  # bad
                self.whole[layer], self.shards[layer], group=self.group, async_op=True
            )


def main() -> None:
    begin()
    prefetcher = Prefetcher()
    gradients = torch.ones(LARGE, device=device)
    for step in range(9):
        for layer in (0, 1):
            work = prefetcher.start(layer)
            if bad and step == 6 and layer == 0:
                work = prefetcher.start(layer)  # bad
            dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
            work.wait()
        if step % 2 == 1:
            gradients.sum().item()
    prefetcher.whole[1].sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
