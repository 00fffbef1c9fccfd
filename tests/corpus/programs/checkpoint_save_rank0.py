"""Save a distributed checkpoint every few steps."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = tempfile.gettempdir()
    model = nn.Linear(32, 8)
    for step in range(10):
        model(torch.randn(16, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if step == 6 and (rank == 0 or not faulty):
            dcp.save(model.state_dict(), checkpoint_id=os.path.join(folder, f"step-{step}"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
