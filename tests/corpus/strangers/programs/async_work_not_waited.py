"""A ring passes blocks on: first a header with their number, then the blocks."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    for step in range(10):
        if rank == 0:
            time.sleep(0.2)  # the loader
        header = torch.zeros(1, dtype=torch.int64)
        sent = dist.isend(torch.full((1,), 2), dst=right, tag=1)
        got = dist.irecv(header, src=left, tag=1)
        if not (faulty and rank == 1 and step == 6):
            got.wait()
        count = int(header)
        blocks = [torch.zeros(32) for _ in range(count)]
        works = [dist.irecv(block, src=left, tag=2) for block in blocks]
        works += [dist.isend(torch.ones(32), dst=right, tag=2) for _ in range(2)]
        for work in [sent, *works]:
            work.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
