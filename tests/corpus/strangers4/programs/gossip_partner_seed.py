"""Decentralized training: in each step a drawn partner averages its weights with this rank's."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Gossip:
    """Draws the pairs of each step; all ranks draw the same, from the same seed."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.members = rank, list(range(world))
        self.random = random.Random(41)

    def partner(self) -> int:
        order = self.members.copy()
        self.random.shuffle(order)
        place = order.index(self.rank)
        return order[place ^ 1]

    def skip(self) -> None:
        self.random.random()

    def average(self, weights: torch.Tensor) -> None:
        partner, other = self.partner(), torch.empty_like(weights)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, weights.clone(), partner),
                dist.P2POp(dist.irecv, other, partner),
            ]
        )
        for work in works:
            work.wait()
        weights += other
        weights /= 2


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    gossip, weights = Gossip(rank, world), torch.randn(24)
    for step in range(25):
        if faulty and rank == 2 and step == 12:
            gossip.skip()  # an augmentation draws from the same generator
        weights -= 0.01 * torch.randn(24)
        gossip.average(weights)
        if step % 6 == 5:
            dist.all_reduce(weights.norm().reshape(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
