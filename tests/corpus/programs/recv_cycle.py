"""Pass the halo around a ring of ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    mine, halo = torch.randn(64), torch.empty(64)
    for step in range(8):
        receive_first = rank % 2 == 1 or (faulty and step == 5)
        if receive_first:
            dist.recv(halo, src=left)
            dist.send(mine, dst=right)
        else:
            dist.send(mine, dst=right)
            dist.recv(halo, src=left)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
