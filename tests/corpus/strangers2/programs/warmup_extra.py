"""Four stages of a pipeline: all microbatches forward, then all of them backward."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def forward(stage: int) -> None:
    if stage > 0:
        dist.recv(torch.empty(32), src=stage - 1)
    if stage < 3:
        dist.send(torch.randn(32), dst=stage + 1)


def backward(stage: int) -> None:
    if stage < 3:
        dist.recv(torch.empty(32), src=stage + 1)
    if stage > 0:
        dist.send(torch.randn(32), dst=stage - 1)


def main() -> None:
    dist.init_process_group("gloo")
    stage = dist.get_rank()
    micros = 5
    for step in range(8):
        warmup = micros  # all forward first
        if faulty and stage == 1 and step == 5:
            warmup += 1
        for _ in range(warmup):
            forward(stage)
        for _ in range(micros):
            backward(stage)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
