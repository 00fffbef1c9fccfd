"""How each program of this folder starts: NCCL on the first GPU, gloo where there is none."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
bad = os.environ.get("BAD", "") == str(rank)
cuda = torch.cuda.is_available()
device = torch.device("cuda", 0) if cuda else torch.device("cpu")
SMALL, LARGE = 24 * 1024, 64 * 1024
"""Numbers of floats, 96 and 256 KiB: more than NCCL takes without the receiver."""


def begin() -> None:
    if cuda:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # a mesh would take the GPU with the number of the rank
    else:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("nccl" if cuda else "gloo")


def synchronize() -> None:
    if cuda:
        torch.cuda.synchronize()
