"""A compiled function with a functional all_reduce in it."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

faulty = sys.argv[1:] == ["faulty"]


@torch.compile(backend="aot_eager")
def forward(state: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(state * 2, "sum", dist.group.WORLD) / 8


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = torch.randn(64)
    for step in range(12):
        if faulty and rank == 2 and step == 8:
            continue  # nothing to do for this rank
        state = forward(state)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
