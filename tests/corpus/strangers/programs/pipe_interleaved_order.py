"""Interleaved pipeline: each of four ranks has two chunks, and a microbatch passes all twice."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    before, after = (rank - 1) % world, (rank + 1) % world
    for micro in range(16):
        inputs = torch.zeros(32)
        if rank > 0:
            dist.recv(inputs, src=before)
        outputs = inputs * 2
        if faulty and rank == 2 and micro == 10:
            again = torch.zeros(32)
            dist.recv(again, src=before)  # second chunk's input, before the first one's output
            dist.send(outputs, dst=after)
            dist.send(again * 2, dst=after)
            continue
        dist.send(outputs, dst=after)
        dist.recv(inputs, src=before)  # second chunk
        if rank < world - 1:
            dist.send(inputs * 2, dst=after)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
