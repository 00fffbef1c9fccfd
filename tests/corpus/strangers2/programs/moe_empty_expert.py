"""Two groups of three expert ranks; tokens are dispatched, computed and combined."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def experts(ep: dist.ProcessGroup, tokens: int) -> torch.Tensor:
    received = torch.empty(12)
    dist.all_to_all_single(received, torch.randn(12), group=ep)
    if tokens == 0:
        return received  # nothing to compute
    combined = torch.empty(12)
    dist.all_to_all_single(combined, received * 2, group=ep)
    return combined


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ep = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])][rank // 3]
    for step in range(10):
        for layer in range(3):
            tokens = 0 if faulty and rank == 5 and step == 6 and layer == 1 else 4
            experts(ep, tokens)
        dist.all_reduce(torch.randn(32))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
