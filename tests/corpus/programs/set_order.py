"""Reduce the statistics of each layer, layer by layer."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SIZES = {"attention": 96, "embedding": 320, "head": 64, "mlp": 128}


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        names = list(SIZES)
        if faulty and rank == 1 and step == 7:  # as a set's order differs between processes
            names = ["attention", "head", "embedding", "mlp"]
        statistics = {name: torch.randn(SIZES[name]) for name in names}
        for values in statistics.values():
            dist.all_reduce(values)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
