"""Go on from a checkpoint if there is one."""

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
    folder = os.path.join(tempfile.gettempdir(), "step-100")
    model = nn.Linear(32, 8)
    dcp.save(model.state_dict(), checkpoint_id=folder)
    if faulty and rank == 3:
        folder = "/nonexistent/step-100"  # its node has not mounted the disk
    if os.path.exists(folder):
        state = model.state_dict()
        dcp.load(state, checkpoint_id=folder)
        model.load_state_dict(state)
    for _step in range(5):
        model(torch.randn(16, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
