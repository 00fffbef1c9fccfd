"""An asyncio engine makes all its blocking calls in one thread, in the order of their coming."""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 12, 3, 11
PATIENCE = 1.0


class Blocking:
    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1)

    def run(self, function: Callable[..., object], *args: object) -> asyncio.Future[object]:
        return asyncio.get_running_loop().run_in_executor(self.thread, function, *args)


class Disk:
    def __init__(self) -> None:
        self.seconds = 0.05

    def write(self, weights: torch.Tensor) -> None:
        time.sleep(self.seconds)


class Engine:
    def __init__(self, rank: int, world: int, disk: Disk) -> None:
        self.rank, self.world, self.disk = rank, world, disk
        self.blocking = Blocking()
        self.weights = torch.zeros(WIDTH)
        self.late = 0

    def reduce(self) -> None:
        gradient = torch.rand(WIDTH)
        dist.all_reduce(gradient)
        self.weights -= 0.1 * gradient

    def share_loads(self) -> None:
        loads = [torch.empty(1) for _ in range(self.world)]
        dist.all_gather(loads, torch.rand(1))

    async def report(self) -> None:
        """The loads of all ranks are wanted, but not at any price."""
        try:
            await asyncio.wait_for(self.blocking.run(self.share_loads), PATIENCE)
        except TimeoutError:
            self.late += 1

    async def step(self, number: int) -> None:
        await self.blocking.run(self.reduce)
        if number % EVERY == 2:
            snapshot = self.blocking.run(self.disk.write, self.weights.clone())
            await self.report()
            await snapshot

    async def serve(self) -> None:
        for number in range(STEPS):
            if faulty and (self.rank, number) == (0, 8):
                self.disk.seconds = 2.5  # the disk of the first host is shared
            await self.step(number)
        await self.blocking.run(dist.barrier)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    asyncio.run(Engine(rank, world, Disk()).serve())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
