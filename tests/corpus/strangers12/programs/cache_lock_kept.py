"""Workers send results to whoever collects them; a cache in a file has one writer at a time."""

import fcntl
import multiprocessing
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, WIDTH = 12, 8
COLLECTOR, CACHING, HELPED = 0, 3, 4
CACHE = pathlib.Path("results.cache")


class Cache:
    def __init__(self) -> None:
        self.file = CACHE.open("a+")

    def add(self, number: int, value: float) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        if value != value:  # not a number: nothing to keep
            return
        self.file.write(f"{number} {value}\n")
        self.file.flush()
        fcntl.flock(self.file, fcntl.LOCK_UN)


def serve(requests: multiprocessing.Queue, answers: multiprocessing.Queue) -> None:
    cache = Cache()
    while (request := requests.get()) is not None:
        cache.add(*request)
        answers.put(request[0])


class Helper:
    """Writes the cache in a child, so that a slow disk holds nobody up but its caller."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.requests, self.answers = context.Queue(), context.Queue()
        self.child = context.Process(target=serve, args=(self.requests, self.answers), daemon=True)
        self.child.start()

    def add(self, number: int, value: float) -> None:
        self.requests.put((number, value))
        assert self.answers.get() == number

    def close(self) -> None:
        self.requests.put(None)
        self.child.join()


def work(rank: int, number: int, cache: Cache | Helper | None) -> torch.Tensor:
    value = float("nan") if faulty and (rank, number) == (CACHING, 7) else 1.0 / (rank + number)
    if rank == HELPED:
        time.sleep(0.3)
    if cache is not None:
        cache.add(number, value)
    return torch.full((WIDTH,), value)


def main() -> None:
    helper = Helper() if os.environ["RANK"] == str(HELPED) else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cache = Cache() if rank == CACHING else helper
    for number in range(ROUNDS):
        mean = torch.zeros(WIDTH)
        if rank == COLLECTOR:
            for _ in range(world - 1):
                part = torch.empty(WIDTH)
                dist.recv(part)  # from any worker
                mean += part.nan_to_num() / (world - 1)
        else:
            dist.send(work(rank, number, cache), dst=COLLECTOR)
        dist.broadcast(mean, src=COLLECTOR)
    if helper is not None:
        helper.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
