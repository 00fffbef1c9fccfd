"""Two tensor parallel ranks verify drafts until a token is refused."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


ACCEPTED = [3, 5, 1, 4, 2, 6, 3, 5, 4, 1, 6, 2]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for request, accepted in enumerate(ACCEPTED):
        if faulty and rank == 1 and request == 7:
            accepted -= 1  # its logits are rounded otherwise
        for _ in range(accepted):
            dist.all_reduce(torch.randn(32))
        logits = [torch.empty(32) for _ in range(2)]
        dist.all_gather(logits, torch.randn(32))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
