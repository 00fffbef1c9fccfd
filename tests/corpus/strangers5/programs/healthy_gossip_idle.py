"""Gossip in which few ranks speak at a time: drawn pairs average after long local work."""

import random
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
ROUNDS, LONGEST = (12, 15.0) if faulty else (12, 0.1)


def average(weights: torch.Tensor, peer: int) -> None:
    other = torch.empty_like(weights)
    receiving = dist.irecv(other, src=peer)
    dist.isend(weights.clone(), dst=peer).wait()
    receiving.wait()
    weights += other
    weights /= 2


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    draw, weights = random.Random(17), torch.randn(32)
    for number in range(ROUNDS):
        pair, slow, share = draw.sample(range(world), 2), draw.randrange(2), draw.random()
        if rank not in pair:
            continue
        if rank == pair[slow]:
            time.sleep(LONGEST * (0.6 + 0.4 * share))  # local steps on a device
        average(weights, pair[1] if rank == pair[0] else pair[0])
        if number % 4 == 0:
            average(weights, pair[1] if rank == pair[0] else pair[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
