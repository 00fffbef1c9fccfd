"""Shared buffers meet all ranks when they are freed, which happens when nobody refers to them."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, GROW = 15, 5


class SharedBuffer:
    """Memory that peers may read: it goes when all ranks have stopped to use it."""

    def __init__(self, size: int) -> None:
        self.values = torch.zeros(size)
        self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            dist.barrier()

    def __del__(self) -> None:
        self.close()


class Engine:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.buffer = SharedBuffer(16)
        self.slow_steps: list[tuple[int, SharedBuffer]] = []

    def grow(self, step: int) -> None:
        self.buffer = SharedBuffer(self.buffer.values.numel() * 2)

    def step(self, step: int) -> None:
        if step and step % GROW == 0:
            self.grow(step)
        self.buffer.values += 1
        dist.all_reduce(torch.randn(14))
        if faulty and self.rank == 0 and step == 8:
            self.slow_steps.append((step, self.buffer))  # to look at later
        dist.broadcast(torch.randn(14), src=1)


def main() -> None:
    dist.init_process_group("gloo")
    engine = Engine(dist.get_rank())
    for step in range(STEPS):
        engine.step(step)
    engine.buffer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
