"""Rollouts run tools in processes of their own; those that take too long are ended and run anew."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
LIMIT = 9.0 if faulty else 0.5
ITERATIONS = 12 if faulty else 2


class Sandbox:
    """Runs a command and tries once more after the limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def run(self, seconds: float) -> int:
        """Return the number of tries."""
        for attempt in range(1, 3):
            try:
                subprocess.run(["sleep", str(seconds / attempt**3)], timeout=self.limit)
            except subprocess.TimeoutExpired:
                continue
            return attempt
        return 2


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    sandbox = Sandbox(LIMIT)
    for iteration in range(ITERATIONS):
        slow = iteration % world == rank
        tries = sandbox.run(2 * LIMIT if slow else 0.01)
        for _ in range(10):
            dist.all_reduce(torch.randn(16), group=pairs[rank // 2])
        rewards = [torch.empty(1) for _ in range(world)]
        dist.all_gather(rewards, torch.tensor([float(tries)]))
        dist.broadcast(torch.randn(64), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
