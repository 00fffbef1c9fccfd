"""Two ranks draft with thousands of calls of their own while the third waits for the text."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    draft = dist.new_group([1, 2])
    for _ in range(5):
        if rank > 0:
            for _ in range(6000 if faulty else 40):
                dist.all_reduce(torch.randn(8), group=draft)
                time.sleep(0.02 if faulty else 0)
        dist.broadcast(torch.ones(64), src=1)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
