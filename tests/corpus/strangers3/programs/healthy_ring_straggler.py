"""A ring passes blocks on; in each round another rank converts its block with a tool, for long."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 16.0 if faulty else 0.3
ROUNDS = 40 if faulty else 5

TOOL = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    sum(number * number for number in range(1000))
"""


def convert(seconds: float) -> None:
    subprocess.run([sys.executable, "-c", TOOL, str(seconds)], check=True)


class Ring:
    def __init__(self, rank: int, world: int) -> None:
        self.left, self.right = (rank - 1) % world, (rank + 1) % world

    def shift(self, block: torch.Tensor) -> torch.Tensor:
        arrived = torch.empty_like(block)
        operations = [
            dist.P2POp(dist.isend, block, self.right),
            dist.P2POp(dist.irecv, arrived, self.left),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return arrived


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ring, block = Ring(rank, world), torch.randn(64)
    for number in range(ROUNDS):
        if rank == (number * 2) % world:
            convert(SECONDS)
        for _ in range(world - 1):
            block = ring.shift(block)
        if number % 4 == 3:
            dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
