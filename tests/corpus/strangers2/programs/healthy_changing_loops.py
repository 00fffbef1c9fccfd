"""Nested loops whose lengths change from step to step, the same on all ranks."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(500 if faulty else 8):
        length = torch.tensor([1 + (step * 7) % 5])
        dist.broadcast(length, src=step % 4)
        for outer in range(int(length)):
            for _ in range((step + outer) % 3):
                dist.all_reduce(torch.randn(16), group=pairs[rank // 2])
            if (step + outer) % 2:
                dist.all_reduce(torch.randn(16))
            else:
                parts = [torch.empty(16) for _ in range(4)]
                dist.all_gather(parts, torch.randn(16))
        time.sleep(2.5 if faulty and step % 4 == rank else 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
