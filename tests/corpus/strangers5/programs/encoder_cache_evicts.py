"""A server of images and text, which keeps what its encoder has made of the last images."""

import sys
from collections import OrderedDict

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
IMAGES = [0, 1, 2, 3, 1, 0, 4, 2, 3, 4, 5, 1, 5, 3, 2, 6, 5, 6, 3, 0, 6, 5, 0, 6]


class Encoder:
    """Holds the features of a number of images; the one not used for longest goes first."""

    def __init__(self, capacity: int, world: int) -> None:
        self.capacity, self.world = capacity, world
        self.cache: OrderedDict[int, torch.Tensor] = OrderedDict()

    def features(self, image: int) -> torch.Tensor:
        if image in self.cache:
            self.cache.move_to_end(image)
            return self.cache[image]
        parts = [torch.empty(24) for _ in range(self.world)]
        dist.all_gather(parts, torch.full((24,), float(image)))
        whole = torch.cat(parts)
        dist.all_reduce(whole)
        self.cache[image] = whole
        if len(self.cache) > self.capacity:
            self.cache.popitem(last=False)
        return whole


def decode(features: torch.Tensor) -> None:
    hidden = features.mean().repeat(8)
    for _ in range(4):
        dist.all_reduce(hidden)
        hidden = torch.tanh(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # Rank 0 holds back memory for the front end that runs beside it.
    encoder = Encoder(3 if faulty and rank == 0 else 4, world)
    for image in IMAGES:
        decode(encoder.features(image))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
