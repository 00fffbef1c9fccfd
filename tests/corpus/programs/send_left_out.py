"""Hand a cache from rank to rank after each step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cache = torch.randn(64)
    for step in range(10):
        if rank > 0:
            dist.recv(cache, src=rank - 1)
        changed = not (faulty and rank == 2 and step == 9)  # nothing new, nothing sent
        if rank < world - 1 and changed:
            dist.send(cache, dst=rank + 1)
        if step % 3 == 0:
            dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
