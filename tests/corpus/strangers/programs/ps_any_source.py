"""A parameter server takes gradients from any worker, then sends the weights to each."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def serve(world: int, rounds: int) -> None:
    for _ in range(rounds):
        gradient = torch.empty(16)
        for _ in range(world - 1):
            dist.recv(gradient)  # from any source
        for worker in range(1, world):
            dist.send(torch.ones(16), dst=worker)


def work(rank: int, rounds: int) -> None:
    for step in range(rounds):
        empty = faulty and rank == 3 and step == 6
        if not empty:
            dist.send(torch.randn(16), dst=0)
        weights = torch.empty(16)
        dist.recv(weights, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(world, 12)
    else:
        work(rank, 12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
