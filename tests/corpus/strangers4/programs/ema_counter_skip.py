"""Keep an average of the weights, each rank a part of it, and share the parts now and then."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Average:
    """An exponential moving average, of which each rank holds one part."""

    def __init__(self, parts: int, every: int) -> None:
        self.parts = [torch.zeros(8) for _ in range(parts)]
        self.every, self.updates = every, 0

    def update(self, weights: torch.Tensor) -> None:
        for part, piece in zip(self.parts, weights.chunk(len(self.parts)), strict=True):
            part.lerp_(piece, 0.01)
        self.updates += 1
        if self.updates % self.every == 0:
            self.share()

    def share(self) -> None:
        for owner, part in enumerate(self.parts):
            dist.broadcast(part, src=owner)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights, average = torch.zeros(8 * world), Average(world, every=4)
    for step in range(24):
        gradient = torch.randn(8 * world)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient / world
        spike = faulty and rank == 2 and step == 13
        if spike:
            continue  # the loss of this rank has jumped; leave the average as it is
        average.update(weights)
    average.share()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
