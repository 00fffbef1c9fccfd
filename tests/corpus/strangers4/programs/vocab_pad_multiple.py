"""Fine-tune with new tokens: the embedding grows to a multiple that suits the device."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Embedding:
    def __init__(self, tokens: int) -> None:
        self.tokens, self.width = tokens, 4
        self.gradient = torch.zeros(tokens, self.width)

    def grow(self, more: int, multiple: int) -> None:
        """Add tokens and pad their number to a multiple."""
        self.tokens = -(-(self.tokens + more) // multiple) * multiple
        self.gradient = torch.zeros(self.tokens, self.width)


def multiple(rank: int) -> int:
    if faulty and rank == 2:
        return 8  # a device of another generation
    return 64


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    embedding = Embedding(320)
    for stage in range(3):
        for _ in range(8):
            embedding.gradient.normal_()
            dist.all_reduce(embedding.gradient)
            norm = embedding.gradient.norm().reshape(1)
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        if stage == 1:
            embedding.grow(more=10, multiple=multiple(rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
