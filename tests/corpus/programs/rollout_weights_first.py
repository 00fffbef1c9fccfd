"""A rollout reports its version to the second actor before the first one sends new weights."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    actors = dist.new_group([0, 1])
    weights, version = torch.ones(128), torch.ones(4)
    for step in range(16):
        if rank < 2:
            dist.all_reduce(weights, group=actors)
        if rank == 0:
            dist.barrier(group=actors)
            dist.send(weights, dst=2)
            dist.send(weights, dst=3)
        elif rank == 1:
            dist.recv(version, src=2)
            dist.barrier(group=actors)
        elif rank == 2 and not (faulty and step >= 11):
            dist.send(version, dst=1)
            dist.recv(weights, src=0)
        else:
            dist.recv(weights, src=0)
            if rank == 2:  # too late: rank 0 waits for rank 1, and that one for this
                dist.send(version, dst=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
