"""Send each rank the tokens of its experts."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
TOKENS = [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 9, 3]]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        sends = list(TOKENS[rank])
        expects = [TOKENS[peer][rank] for peer in range(4)]
        if faulty and rank == 2 and step == 6:
            sends[0] += 2
        tokens = torch.randn(sum(sends), 16)
        received = torch.empty(sum(expects), 16)
        dist.all_to_all_single(received, tokens, expects, sends)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
