"""Decodes on four ranks; finished blocks of the cache are copied to host memory by a thread."""

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, VOCABULARY = 24, 3, 6


class HostPool:
    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.data: list[torch.Tensor] = []

    def store(self, block: torch.Tensor) -> None:
        self.data.append(block.clone())


class HostCache:
    """Write-through cache: a block may leave the device when all ranks have copied it."""

    def __init__(self, pool: HostPool, group: dist.ProcessGroup) -> None:
        self.pool, self.group = pool, group
        self.ongoing: list[int] = []
        self.todo: queue.Queue[torch.Tensor] = queue.Queue()
        self.copied: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        while True:
            block = self.todo.get()
            self.pool.store(block)
            self.copied.put(1)

    def write(self, number: int, block: torch.Tensor) -> bool:
        if self.pool.free == 0:
            return False
        self.pool.free -= 1
        self.ongoing.append(number)
        self.todo.put(block)
        return True

    def writing_check(self) -> list[int]:
        """Return the blocks that all ranks have copied by now."""
        if not self.ongoing:
            return []
        count = torch.tensor(self.copied.qsize())
        dist.all_reduce(count, op=dist.ReduceOp.MIN, group=self.group)
        through = int(count)
        for _ in range(through):
            self.copied.get()
        gone, self.ongoing = self.ongoing[:through], self.ongoing[through:]
        return gone


class Engine:
    def __init__(self, rank: int, world: int, cache: HostCache) -> None:
        self.rank, self.world, self.cache = rank, world, cache
        self.resident: set[int] = set()

    def logits(self) -> torch.Tensor:
        part = torch.rand(VOCABULARY)
        out = [torch.empty(VOCABULARY) for _ in range(self.world)]
        dist.all_gather(out, part)
        return torch.cat(out)

    def step(self, number: int) -> int:
        if number % EVERY == 0:
            self.resident.add(number)
            self.cache.write(number, torch.rand(16))
        token = int(self.logits().argmax())
        time.sleep(0.03)
        self.resident -= set(self.cache.writing_check())
        return token


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    control = dist.new_group(range(world))
    blocks = 64
    if faulty and rank == 2:
        blocks = 5  # other processes of this host have pinned most of its memory
    engine = Engine(rank, world, HostCache(HostPool(blocks), control))
    for number in range(STEPS):
        engine.step(number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
