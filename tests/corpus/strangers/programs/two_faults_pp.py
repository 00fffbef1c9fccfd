"""Two pipelines of three stages; the gradients are summed over both."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage, base = rank % 3, rank - rank % 3
    dp = [dist.new_group([first, first + 3]) for first in range(3)][stage]
    for step in range(8):
        micros = 4
        if faulty and step == 5 and rank in (1, 5):
            micros = 3  # each of the two has lost a batch
        for _ in range(micros):
            inputs = torch.zeros(16)
            if stage > 0:
                dist.recv(inputs, src=rank - 1)
            if stage < 2:
                dist.send(inputs + 1, dst=rank + 1)
        for _ in range(micros):
            gradient = torch.zeros(16)
            if stage < 2:
                dist.recv(gradient, src=rank + 1)
            if rank > base:
                dist.send(gradient, dst=rank - 1)
        dist.all_reduce(torch.ones(16), group=dp)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
