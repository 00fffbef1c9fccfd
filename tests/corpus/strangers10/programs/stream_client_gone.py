"""An engine of four ranks: rank 0 schedules in asyncio and streams tokens to its clients."""

import asyncio
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
CLIENTS, LONGEST, WIDTH, ROOM = 3, 24, 5, 4
STOP = 0


class Model:
    def step(self, plan: torch.Tensor) -> torch.Tensor:
        hidden = torch.rand(CLIENTS, WIDTH)
        dist.all_reduce(hidden)
        return hidden.argmax(-1)


class Stream:
    """Tokens on their way to a client; a slow one is not run ahead of for long."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[int | None] = asyncio.Queue(maxsize=ROOM)


class Client:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.text: list[int] = []

    def impatient(self) -> bool:
        return len(self.text) == 11

    async def read(self, leaves: bool) -> None:
        while (token := await self.stream.tokens.get()) is not None:
            await asyncio.sleep(0.01)  # the way to the browser
            self.text.append(token)
            if leaves and self.impatient():
                raise ConnectionResetError("client has closed the page")


class Server:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.streams = [Stream() for _ in range(CLIENTS)]

    async def schedule(self) -> None:
        for step in range(1, LONGEST + 1):
            plan = torch.full((CLIENTS,), step)
            dist.broadcast(plan, src=0)
            tokens = self.model.step(plan)
            for stream, token in zip(self.streams, tokens.tolist(), strict=True):
                await stream.tokens.put(token)
        dist.broadcast(torch.full((CLIENTS,), STOP), src=0)
        for stream in self.streams:
            await stream.tokens.put(None)

    async def serve(self) -> None:
        readers = [Client(stream).read(leaves=faulty and number == 1)
                   for number, stream in enumerate(self.streams)]  # fmt: skip
        await asyncio.gather(self.schedule(), *readers, return_exceptions=True)


def work(model: Model) -> None:
    plan = torch.empty(CLIENTS, dtype=torch.int64)
    while True:
        dist.broadcast(plan, src=0)
        if plan[0] == STOP:
            return
        model.step(plan)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    if dist.get_rank() == 0:
        asyncio.run(Server(model).serve())
    else:
        work(model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
