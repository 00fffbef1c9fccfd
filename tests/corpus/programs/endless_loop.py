"""Pack documents into sequences of equal length before each step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def pack(lengths: list[int], room: int) -> int:
    packed = 0
    while packed < room:
        packed += lengths[packed % len(lengths)]
    return packed


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        lengths = [0, 0, 0] if faulty and rank == 2 and step == 7 else [120, 77, 300]
        tokens = torch.tensor([pack(lengths, 2048)])
        dist.all_reduce(tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
