"""Decode with a tensor-parallel model until the end token is drawn."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

faulty = sys.argv[1:] == ["faulty"]


def drawn_end(step: int, rank: int) -> bool:
    return step == (11 if faulty and rank == 3 else 12)  # each rank draws with its own seed


def main() -> None:
    mesh = init_device_mesh("cpu", (4,))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    state = torch.randn(1, 32)
    for _request in range(2):
        for step in range(100):
            state = model(state)
            if drawn_end(step, rank):
                break
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
