"""Asyncio engines take work from a scheduler; each looks after its health while it waits."""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, WIDTH, SCHEDULER = 12, 8, 0
WORK, RESULT = 1, 2


class Engine:
    """Receives in threads, since a receive cannot be awaited."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="receiver")
        self.checks = 0

    def _take(self) -> torch.Tensor:
        rows = torch.empty(WIDTH)
        dist.recv(rows, src=SCHEDULER, tag=WORK)
        return rows

    async def take(self) -> torch.Tensor:
        loop = asyncio.get_running_loop()
        while True:
            task = loop.run_in_executor(self.pool, self._take)
            try:
                return await asyncio.wait_for(task, self.patience)
            except TimeoutError:
                self.checks += 1  # nothing to do: is all well meanwhile?
                await asyncio.sleep(0.01)

    async def run(self) -> None:
        for _ in range(ROUNDS):
            rows = await self.take()
            dist.send(rows.tanh(), dst=SCHEDULER, tag=RESULT)
        self.pool.shutdown()


class Scheduler:
    def __init__(self, engines: list[int]) -> None:
        self.engines = engines

    def think(self, number: int) -> None:
        time.sleep(0.6 if number % 6 == 5 else 0.05)

    def run(self) -> None:
        for number in range(ROUNDS):
            self.think(number)
            for engine in self.engines:
                dist.send(torch.randn(WIDTH), dst=engine, tag=WORK)
            for engine in self.engines:
                dist.recv(torch.empty(WIDTH), src=engine, tag=RESULT)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if rank == SCHEDULER:
        Scheduler(list(range(1, world))).run()
    else:
        brisk = faulty and rank == 2
        asyncio.run(Engine(patience=0.3 if brisk else 20.0).run())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
