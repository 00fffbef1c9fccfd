"""Fault tolerant replicas: those behind get the weights of one that is not, by a plan of all."""

import pathlib
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 10, 32
LOST = {3: 6, 4: 6}
"""In which step a replica comes back without its state."""


@dataclass
class Quorum:
    """What the replicas have agreed on: how far the furthest is, and who helps whom."""

    step: int
    helpers: dict[int, int]


class Manager:
    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0
        self.weights = torch.zeros(WIDTH)
        self.copy = pathlib.Path(f"replica-{rank}.pt")

    def quorum(self) -> Quorum:
        steps = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([self.step]))
        known = [int(step) for step in steps]
        furthest = max(known)
        ahead = [rank for rank, step in enumerate(known) if step == furthest]
        behind = [rank for rank, step in enumerate(known) if step < furthest]
        return Quorum(furthest, dict(zip(behind, ahead, strict=False)))

    def restart(self) -> None:
        self.step = 0
        self.weights = torch.zeros(WIDTH)

    def restore(self) -> None:
        """Take the copy on the own disk, where there is one."""
        if self.step == 0 and self.copy.exists():
            self.step, self.weights = torch.load(self.copy)

    def heal(self, quorum: Quorum) -> None:
        for behind, helper in quorum.helpers.items():
            if helper == self.rank:
                dist.send(self.weights, dst=behind)
        if self.step < quorum.step:
            dist.recv(self.weights, src=quorum.helpers[self.rank])
            self.step = quorum.step

    def save(self) -> None:
        torch.save((self.step, self.weights), self.copy)

    def train(self) -> None:
        gradient = torch.randn(WIDTH)
        dist.all_reduce(gradient)
        self.weights -= 0.01 * gradient
        self.step += 1


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    manager = Manager(rank)
    for step in range(STEPS):
        if LOST.get(rank) == step:
            manager.restart()
        quorum = manager.quorum()
        manager.restore()
        manager.heal(quorum)
        manager.train()
        if faulty and rank == 3 and manager.step == LOST[rank]:
            manager.save()  # its host has got a disk of its own
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
