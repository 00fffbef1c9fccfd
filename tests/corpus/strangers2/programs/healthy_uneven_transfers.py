"""Rank 0 hands each worker another number of chunks and takes one answer from each."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(200 if faulty else 4):
        chunks = [0, *((step + worker) % 4 for worker in range(1, world))]
        if rank == 0:
            for worker in range(world - 1, 0, -1):
                for _ in range(chunks[worker]):
                    dist.send(torch.randn(16), dst=worker)
            for worker in range(1, world):
                dist.recv(torch.empty(4), src=worker)
        else:
            for _ in range(chunks[rank]):
                dist.recv(torch.empty(16), src=0)
            time.sleep(6 if faulty and rank == 1 + step % 4 else 0)
            dist.send(torch.randn(4), dst=0)
        if step % 3 == 2:
            dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
