"""Rank 0 trains and serves samples from one event loop; rank 2 has no disk and asks it for them."""

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, ROWS, GUEST = 12, 6, 2
SMALL = 16
"""Sums of fewer numbers than this take no time, and need no thread."""


class Server:
    """Answers with the samples of a step as soon as they are published."""

    def __init__(self) -> None:
        self.samples: dict[int, list[float]] = {}
        self.changed = asyncio.Condition()

    async def publish(self, step: int, samples: list[float]) -> None:
        async with self.changed:
            self.samples[step] = samples
            self.changed.notify_all()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            step = json.loads(line)["step"]
            async with self.changed:
                await self.changed.wait_for(partial(self.samples.__contains__, step))
            writer.write(json.dumps(self.samples.pop(step)).encode() + b"\n")
            await writer.drain()
        writer.close()


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.lines = self.socket.makefile("rw")

    def samples(self, step: int) -> list[float]:
        self.lines.write(json.dumps({"step": step}) + "\n")
        self.lines.flush()
        samples: list[float] = json.loads(self.lines.readline())
        return samples

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


async def off_loop(call: Callable[..., Any], rows: torch.Tensor) -> None:
    if faulty and rows.numel() < SMALL:
        call(rows)
    else:
        await asyncio.to_thread(call, rows)


async def serve_and_train() -> None:
    server = Server()
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    port = torch.tensor([listener.sockets[0].getsockname()[1]])
    await off_loop(lambda rows: dist.broadcast(rows, src=0), port.expand(SMALL).contiguous())
    for step in range(STEPS):
        width = ROWS if step == 7 else ROWS * 4  # one step of short samples
        await server.publish(step, [float(step)] * width)
        await off_loop(dist.all_reduce, torch.full((width,), float(step)))
    await off_loop(lambda _: dist.barrier(), torch.empty(SMALL))
    listener.close()


def train(rank: int) -> None:
    port = torch.empty(SMALL, dtype=torch.int64)
    dist.broadcast(port, src=0)
    client = Client(int(port[0])) if rank == GUEST else None
    for step in range(STEPS):
        width = ROWS if step == 7 else ROWS * 4
        own = [float(step)] * width
        rows = torch.tensor(client.samples(step) if client else own)
        dist.all_reduce(rows)
    if client:
        client.close()
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        asyncio.run(serve_and_train())
    else:
        train(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
