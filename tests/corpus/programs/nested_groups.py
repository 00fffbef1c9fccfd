"""Sum over the pair first, over all ranks then."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    activations, loss = torch.randn(64), torch.randn(1)
    for step in range(12):
        if faulty and rank == 1 and step == 8:
            dist.all_reduce(loss)
            dist.all_reduce(activations, group=pair)
        else:
            dist.all_reduce(activations, group=pair)
            dist.all_reduce(loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
