"""Particles move between six ranks; which rank sends to which is cut anew when the load changes."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Routes:
    """To whom this rank sends its particles, and from whom it takes some."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.distance = rank, world, 1

    def rebalance(self, distance: int) -> None:
        self.distance = distance

    @property
    def target(self) -> int:
        return (self.rank + self.distance) % self.world

    @property
    def source(self) -> int:
        return (self.rank - self.distance) % self.world


def migrate(routes: Routes, particles: torch.Tensor) -> torch.Tensor:
    arrived = torch.empty_like(particles)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, particles, routes.target),
            dist.P2POp(dist.irecv, arrived, routes.source),
        ]
    )
    for work in works:
        work.wait()
    return arrived


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    routes = Routes(rank, world)
    particles = torch.randn(32)
    for step in range(20):
        for _ in range(3):
            particles = migrate(routes, particles)
        load = particles.abs().sum().reshape(1)
        dist.all_reduce(load)
        if step == 12 and not (faulty and rank == 5):  # its own load had not changed
            routes.rebalance(2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
