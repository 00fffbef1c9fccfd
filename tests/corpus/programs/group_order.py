"""Make the groups for data and for model parallelism."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    members = {"data": [0, 1, 3], "model": [1, 2, 3]}
    names = list(members)
    if faulty and rank == 3:
        names.reverse()
    groups = {name: dist.new_group(members[name]) for name in names}
    tensor = torch.ones(16)
    for _ in range(5):
        for name in members:
            if rank in members[name]:
                dist.all_reduce(tensor, group=groups[name])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
