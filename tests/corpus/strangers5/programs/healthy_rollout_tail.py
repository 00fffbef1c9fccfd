"""Rollouts of unequal length: the last environment of a rank takes long; all gather at the end."""

import asyncio
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
ITERATIONS, UNIT = (5, 1.0) if faulty else (2, 0.02)


class Environment:
    def __init__(self, pauses: list[float]) -> None:
        self.pauses = pauses

    async def play(self) -> int:
        for pause in self.pauses:
            await asyncio.sleep(UNIT * pause)
        return len(self.pauses)


async def roll_out(rank: int, iteration: int) -> list[int]:
    environments = [Environment([0.1] * (3 + number)) for number in range(4)]
    if rank == (4 + iteration) % 5:
        environments.append(Environment([1.0, 0.5, 17.0]))
    return await asyncio.gather(*(environment.play() for environment in environments))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for iteration in range(ITERATIONS):
        lengths = asyncio.run(roll_out(rank, iteration))
        everything: list[list[int]] = [[] for _ in range(world)]
        dist.all_gather_object(everything, lengths)
        for _ in range(sum(map(len, everything))):  # as many microbatches on all ranks
            dist.all_reduce(torch.randn(20))
        dist.broadcast(torch.randn(50), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
