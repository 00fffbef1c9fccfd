"""Two data parallel engines: sizes are agreed on over one group, tensors go over another."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Engine:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.metadata = dist.new_group()  # small messages between hosts
        self.experts = dist.new_group()
        self.random = random.Random(17)  # the same requests on both: each has its half

    def agree(self, tokens: int) -> int:
        sizes = torch.zeros(2, dtype=torch.int64)
        sizes[self.rank] = tokens
        dist.all_reduce(sizes, group=self.metadata)
        return int(sizes.max())

    def layers(self, tokens: int) -> None:
        for _ in range(2):
            parts = [torch.empty(8) for _ in range(2)]
            dist.all_gather(parts, torch.randn(8), group=self.experts)

    def step(self, number: int) -> None:
        decodes = self.random.randint(0, 3)
        if faulty and self.rank == 1 and number == 23:
            decodes += 1  # a request was not preempted here
        if self.random.random() < 0.5:
            self.layers(self.agree(64))  # a prefill
        for _ in range(decodes):
            self.agree(decodes)
        self.layers(1)


def main() -> None:
    dist.init_process_group("gloo")
    engine = Engine(dist.get_rank())
    for number in range(40):
        engine.step(number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
