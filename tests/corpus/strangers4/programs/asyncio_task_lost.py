"""An engine in asyncio: a task fetches prompts, another one runs a step when there is a batch."""

import asyncio
import json
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS = 18


class Source:
    """Lines of JSON, as a server would send them."""

    def __init__(self, rank: int) -> None:
        self.rank, self.number = rank, 0

    async def line(self) -> str:
        await asyncio.sleep(0.005)
        self.number += 1
        if faulty and self.rank == 0 and self.number == 11:
            return '{"prompt": "a long one, cut off by'
        return json.dumps({"prompt": f"number {self.number}"})


class Engine:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.batches: asyncio.Queue[int] = asyncio.Queue(2)

    async def fetch(self) -> None:
        for _ in range(STEPS):
            request = json.loads(await self.source.line())
            await self.batches.put(len(request["prompt"]))

    async def run(self) -> None:
        fetching = asyncio.create_task(self.fetch())
        for _ in range(STEPS):
            length = torch.tensor([await self.batches.get()])
            dist.all_reduce(length, op=dist.ReduceOp.MAX)
            for _ in range(2):
                dist.all_reduce(torch.randn(8))
        await fetching


def main() -> None:
    dist.init_process_group("gloo")
    asyncio.run(Engine(Source(dist.get_rank())).run())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
