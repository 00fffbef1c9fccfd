"""Decoding with a tensor-parallel model; one rank draws the end of the text one token early."""

import torch
import torch.distributed as dist
from common import LARGE, bad, begin, device, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

TEXTS = (9, 11)


def main() -> None:
    begin()
    mesh = init_device_mesh(device.type, (world,))
    model = nn.Sequential(nn.Linear(192, 384), nn.ReLU(), nn.Linear(384, 192)).to(device)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    scores = torch.zeros(LARGE, device=device)
    state = torch.randn(128, 192, device=device)
    for text, length in enumerate(TEXTS):
        for token in range(length):
            with torch.no_grad():
                state = model(state).tanh()  # bad
            state.sum().item()
            if bad and text == 1 and token == length - 2:
                break  # bad
        dist.all_reduce(scores)
        scores.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
