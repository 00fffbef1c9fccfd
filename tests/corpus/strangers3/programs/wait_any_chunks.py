"""Rank 0 waits for whichever chunk comes first; how many there are differs from round to round."""

import random
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 14


def plan(number: int, world: int) -> list[int]:
    """Return how many chunks each worker sends in a round."""
    generator = random.Random(number)
    return [0, *(generator.randint(1, 4) for _ in range(world - 1))]


def collect(pool: ThreadPoolExecutor, chunks: list[int]) -> float:
    pending: dict[Future[object], torch.Tensor] = {}
    for worker, count in enumerate(chunks):
        for _ in range(count):
            chunk = torch.empty(8)
            work = dist.irecv(chunk, src=worker)
            pending[pool.submit(work.wait)] = chunk
    total = 0.0
    while pending:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            total += pending.pop(future).sum().item()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pool = ThreadPoolExecutor(16)
    for number in range(ROUNDS):
        chunks = plan(number, world)
        total = torch.zeros(1)
        if rank == 0:
            total += collect(pool, chunks)
        else:
            count = chunks[rank]
            if faulty and rank == 3 and number == 9:
                count -= 1  # one chunk was filtered away
            for _ in range(count):
                dist.send(torch.randn(8), dst=0)
        dist.broadcast(total, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
