"""A pipeline of four stages; one stage has a microbatch fewer in one step."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, rank, world


def run_step(microbatches: int) -> None:
    outputs = []
    for _ in range(microbatches):
        state = torch.ones(LARGE, device=device)
        if rank > 0:
            dist.recv(state, rank - 1)  # bad
        state = state * 0.5
        if rank < world - 1:
            dist.send(state, rank + 1)  # bad
        outputs.append(state)
    for state in reversed(outputs):
        gradient = torch.ones_like(state)
        if rank < world - 1:
            dist.recv(gradient, rank + 1)  # bad
        if rank > 0:
            dist.send(gradient * state, rank - 1)  # bad


def main() -> None:
    begin()
    norms = torch.ones(SMALL, device=device)
    dist.all_reduce(norms)
    for step in range(8):
        run_step(2 if bad and step == 6 else 3)  # bad
        dist.all_reduce(norms)
        norms /= norms.max().item()
    dist.barrier()
    dist.destroy_process_group()


main()
