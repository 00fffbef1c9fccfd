"""A pipeline of four stages, forward and backward, with send and recv."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = nn.Linear(32, 32)
    for step in range(6):
        microbatches = 3 if faulty and rank == 1 and step == 4 else 4
        kept = []
        for _ in range(microbatches):
            inputs = torch.randn(8, 32)
            if rank > 0:
                dist.recv(inputs, src=rank - 1)
            outputs = stage(inputs.requires_grad_())
            if rank < world - 1:
                dist.send(outputs.detach(), dst=rank + 1)
            kept.append((inputs, outputs))
        for inputs, outputs in reversed(kept):
            gradient = torch.ones(8, 32)
            if rank < world - 1:
                dist.recv(gradient, src=rank + 1)
            outputs.backward(gradient)
            if rank > 0:
                dist.send(inputs.grad, dst=rank - 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
