"""Ring attention: each rank passes its keys to the right with batch_isend_irecv."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(10):
        keys, incoming = torch.randn(32), torch.empty(32)
        for hop in range(world - 1):
            right, left = (rank + 1) % world, (rank - 1) % world
            if faulty and rank == 4 and step == 6 and hop == 2:
                right = 1  # from a table of neighbours without rank 0
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, keys, right),
                    dist.P2POp(dist.irecv, incoming, left),
                ]
            )
            for work in works:
                work.wait()
            keys = incoming.clone()
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
