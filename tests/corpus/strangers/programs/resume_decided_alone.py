"""After each stage rank 0 says in a broadcast where to resume; then training goes on."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tail = dist.new_group([1, 2])
    for stage in range(5):
        for _ in range(4):
            dist.all_reduce(torch.randn(16))
            if rank > 0:
                dist.all_reduce(torch.randn(16), group=tail)
        has_checkpoint = not (faulty and rank == 0 and stage == 3)
        if has_checkpoint:  # rank 0 alone looks, its peers believe that there is one
            where = [stage]
            dist.broadcast_object_list(where, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
