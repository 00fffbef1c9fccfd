"""Context parallel attention: blocks of keys travel around a ring, hop by hop."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def attend(rank: int, world: int, hops: int) -> None:
    block = torch.randn(64)
    for _ in range(hops):
        received = torch.empty(64)
        sent = dist.isend(block, dst=(rank + 1) % world)
        dist.recv(received, src=(rank - 1) % world)
        sent.wait()
        block = received


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(12):
        tokens = 256
        if faulty and rank == 1 and step == 7:
            tokens = 192  # its part of the sequence is shorter
        chunks = tokens // 64
        attend(rank, world, chunks - 2)
        dist.all_reduce(torch.randn(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
