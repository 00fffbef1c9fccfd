"""Agents in asyncio: calls are made in a thread, while episodes wait for tools of many seconds."""

import asyncio
import random
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
BATCHES, WIDTH = 3, 7


class Tool:
    """Something that answers when it likes: a search, a compiler, a person."""

    def __init__(self, rank: int) -> None:
        self.random = random.Random(rank)

    async def call(self, batch: int, rank: int) -> float:
        slow = rank == (1, 3, 0)[batch]
        await asyncio.sleep(SCALE * (11 + 2 * batch if slow else self.random.uniform(0.2, 1.5)))
        return self.random.random()


class Agent:
    def __init__(self, rank: int, world: int, pair: dist.ProcessGroup) -> None:
        self.rank, self.world, self.pair = rank, world, pair
        self.tool = Tool(rank)

    async def generate(self, tokens: int) -> None:
        """The pair decodes together, token by token."""
        for _ in range(tokens):
            await asyncio.to_thread(dist.all_reduce, torch.rand(WIDTH), group=self.pair)

    async def episode(self, batch: int) -> float:
        await self.generate(3 + batch + 2 * (self.rank // 2))
        score = await self.tool.call(batch, self.rank)
        await self.generate(2)
        return score

    async def heartbeat(self) -> None:
        while True:
            await asyncio.sleep(0.5)

    async def train(self, score: float) -> None:
        scores = [torch.empty(1) for _ in range(self.world)]
        await asyncio.to_thread(dist.all_gather, scores, torch.tensor([score]))
        await asyncio.to_thread(time.sleep, SCALE * 0.5)
        await asyncio.to_thread(dist.all_reduce, torch.rand(WIDTH))

    async def run(self) -> None:
        beat = asyncio.create_task(self.heartbeat())
        for batch in range(BATCHES):
            await self.train(await self.episode(batch))
        beat.cancel()
        await asyncio.to_thread(dist.barrier)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    asyncio.run(Agent(rank, world, pairs[rank // 2]).run())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
