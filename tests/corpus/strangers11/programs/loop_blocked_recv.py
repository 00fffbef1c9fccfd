"""A cache server in asyncio answers look-ups of rank 1 and takes the blocks it writes back."""

import asyncio
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, KEYS, OWNER, SERVER = 9, 4, 1, 2
LOOK, FOUND, BLOCK = 1, 2, 3


def rows_of(number: int) -> int:
    """How many rows the block of a round has."""
    return 256 if faulty and number == 5 else 16


class Server:
    """Two coroutines on one loop: one for look-ups, one for blocks."""

    def __init__(self, polled: int) -> None:
        self.polled = polled  # up to so many rows a thread is worth it
        self.blocks: dict[int, torch.Tensor] = {}

    async def look_up(self) -> None:
        keys = torch.empty(KEYS, dtype=torch.int64)
        await asyncio.to_thread(dist.recv, keys, src=OWNER, tag=LOOK)
        found = torch.tensor([int(key in self.blocks) for key in keys.tolist()])
        await asyncio.to_thread(dist.send, found, dst=OWNER, tag=FOUND)

    async def take(self, number: int) -> None:
        room = torch.empty(rows_of(number), 8)
        if len(room) > self.polled:
            dist.recv(room, src=OWNER, tag=BLOCK)
        else:
            await asyncio.to_thread(dist.recv, room, src=OWNER, tag=BLOCK)
        self.blocks[number] = room

    async def serve(self, number: int) -> None:
        await asyncio.gather(self.look_up(), self.take(number))


class Owner:
    def __init__(self) -> None:
        self.hits = 0

    def ask(self, number: int) -> None:
        keys = torch.arange(number, number + KEYS) - 2
        dist.send(keys, dst=SERVER, tag=LOOK)
        found = torch.empty(KEYS, dtype=torch.int64)
        dist.recv(found, src=SERVER, tag=FOUND)
        self.hits += int(found.sum())

    def write(self, number: int) -> None:
        dist.send(torch.rand(rows_of(number), 8), dst=SERVER, tag=BLOCK)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server, owner = Server(polled=64), Owner()
    for number in range(ROUNDS):
        if rank == SERVER:
            asyncio.run(server.serve(number))
        elif rank == OWNER:
            owner.ask(number)
            owner.write(number)
        dist.all_reduce(torch.rand(8))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
