"""Route tokens to experts with uneven all_to_all; a bad batch is logged and left."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def route(experts: dist.ProcessGroup, splits: list[int]) -> None:
    tokens = torch.randn(8, 16)
    received = torch.empty(8, 16)
    dist.all_to_all_single(received, tokens, [2] * 4, splits, group=experts)
    dist.all_to_all_single(tokens, received, [2] * 4, [2] * 4, group=experts)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts = dist.new_group([0, 1, 2, 3])
    for step in range(12):
        splits = [2, 2, 2, 2]
        if faulty and rank == 0 and step == 8:
            splits = [2, 2, 2, 3]  # one token too many
        try:
            route(experts, splits)
        except (RuntimeError, ValueError) as error:
            print(f"step {step} left out: {error}", file=sys.stderr)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
