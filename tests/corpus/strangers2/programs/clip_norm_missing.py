"""Clip gradients: the norms of the parameters that have one are summed in turn."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def clip(gradients: list[torch.Tensor | None]) -> None:
    for gradient in gradients:
        if gradient is not None:
            norm = gradient.norm().reshape(1)
            dist.all_reduce(norm)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        gradients: list[torch.Tensor | None] = [torch.randn(8) for _ in range(3)]
        if faulty and rank == 0 and step == 8:
            gradients[1] = None  # this batch did not use that head
        clip(gradients)
        weights = [torch.empty(32) for _ in range(4)]
        dist.all_gather(weights, torch.randn(32))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
