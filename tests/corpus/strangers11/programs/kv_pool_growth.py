"""Decoding ranks keep pages for prompts that rank 0 sends, and take more while texts grow."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WAVES, EACH, TOKENS, WIDTH = 5, 3, 8, 16
PREFILL = 0


def pages_of(rank: int, request: int) -> int:
    """How many pages a prompt fills."""
    long = faulty and rank == 2 and request // EACH == 3
    return 4 if long else 2


class Pool:
    def __init__(self, pages: int) -> None:
        self.free = pages
        self.changed = threading.Condition()

    def take(self, count: int) -> None:
        with self.changed:
            while self.free < count:
                self.changed.wait()
            self.free -= count

    def give(self, count: int) -> None:
        with self.changed:
            self.free += count
            self.changed.notify_all()


class Receiver(threading.Thread):
    """Takes prompts ahead of the decoding loop, into pages of their own."""

    def __init__(self, rank: int, pool: Pool) -> None:
        super().__init__(daemon=True)
        self.rank, self.pool = rank, pool
        self.slots = threading.Semaphore(EACH)
        self.arrived: queue.Queue[int] = queue.Queue()

    def run(self) -> None:
        for request in range(WAVES * EACH):
            self.slots.acquire()
            pages = pages_of(self.rank, request)
            self.pool.take(pages)
            dist.recv(torch.empty(pages, WIDTH), src=PREFILL, tag=request)
            self.arrived.put(request)


class Decoder:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.pool = Pool(EACH * 4)
        self.receiver = Receiver(rank, self.pool)
        self.receiver.start()

    def decode(self, request: int) -> None:
        pages = pages_of(self.rank, request)
        for token in range(1, TOKENS + 1):
            if token % 4 == 0:
                self.pool.take(1)
                pages += 1
            dist.all_reduce(torch.rand(WIDTH), group=self.group)
        self.pool.give(pages)
        self.receiver.slots.release()

    def run(self) -> None:
        for _ in range(WAVES):
            wave = [self.receiver.arrived.get() for _ in range(EACH)]
            for request in wave:
                self.decode(request)
        self.receiver.join()


def prefill(world: int) -> None:
    for request in range(WAVES * EACH):
        for rank in range(1, world):
            rows = torch.rand(pages_of(rank, request), WIDTH)
            dist.send(rows, dst=rank, tag=request)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(range(1, world))
    if rank == PREFILL:
        prefill(world)
    else:
        Decoder(rank, group).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
