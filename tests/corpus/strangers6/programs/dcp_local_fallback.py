"""Saves a sharded checkpoint now and then; a rank whose shared storage fails saves by itself."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, INTERVAL = 12, 3


class Checkpointer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.shared = Path(tempfile.gettempdir(), "shared")
        self.local = Path(tempfile.gettempdir(), f"local-{rank}")

    def is_writable(self, step: int) -> bool:
        return not (faulty and self.rank == 2 and step == 8)  # its mount has gone stale

    def save(self, model: nn.Module, step: int) -> None:
        state = {"model": model.state_dict(), "step": step}
        if self.is_writable(step):
            dcp.save(state, checkpoint_id=self.shared / str(step))
        else:
            dcp.save(state, checkpoint_id=self.local / str(step), no_dist=True)


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(12, 12)
    checkpointer = Checkpointer(dist.get_rank())
    for step in range(STEPS):
        model(torch.randn(4, 12)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()
        if step % INTERVAL == INTERVAL - 1:
            checkpointer.save(model, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
