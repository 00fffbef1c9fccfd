"""Two coroutines prepare gradients and metrics; each posts its collective when it is ready."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Exchange:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.communication = ThreadPoolExecutor(1)

    def reduce(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)

    def gather(self, metrics: torch.Tensor) -> None:
        parts = [torch.empty_like(metrics) for _ in range(self.world)]
        dist.all_gather(parts, metrics)

    async def gradients(self, step: int) -> None:
        # Rank 3 looks for values that are not finite in one step, off the event loop.
        check = faulty and self.rank == 3 and step == 8
        await asyncio.sleep(0.4 if check else 0.0)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.communication, self.reduce, torch.randn(32))

    async def metrics(self) -> None:
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.communication, self.gather, torch.randn(4))

    async def run(self, steps: int) -> None:
        for step in range(steps):
            await asyncio.gather(self.gradients(step), self.metrics())


def main() -> None:
    dist.init_process_group("gloo")
    exchange = Exchange(dist.get_rank(), dist.get_world_size())
    asyncio.run(exchange.run(14))
    exchange.communication.shutdown()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
