"""Train a generator and a discriminator in turn, both with DistributedDataParallel."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]
STRONG = 0.05
"""Below this loss the discriminator is left alone, so that the generator can catch up."""


def network() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))


class Game:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(1)
        self.generator, self.discriminator = network(), network()
        self.players = {
            name: torch.optim.SGD(player.parameters(), lr=0.01)
            for name, player in (("g", self.generator), ("d", self.discriminator))
        }

    def judge(self, step: int) -> torch.Tensor:
        loss = self.discriminator(torch.randn(4, 8)).square().mean() + 0.1
        if faulty and self.rank == 0 and step == 9:
            loss = loss * 0.01  # an easy batch, here and nowhere else
        return loss

    def round(self, step: int) -> None:
        loss = self.judge(step)
        if loss.item() >= STRONG:
            loss.backward()
            self.players["d"].step()
        self.generator(torch.randn(4, 8)).square().mean().backward()
        self.players["g"].step()
        for player in self.players.values():
            player.zero_grad()


def main() -> None:
    dist.init_process_group("gloo")
    game = Game(dist.get_rank())
    for step in range(16):
        game.round(step)
    sample = game.generator.module(torch.randn(2, 8)).detach()
    dist.broadcast(sample, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
