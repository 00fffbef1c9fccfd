"""Compiled steps with functional collectives; one rank leaves out the step of an empty batch."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from common import bad, begin, device, synchronize


@torch.compile(backend="aot_eager")
def step(batch: torch.Tensor) -> torch.Tensor:
    products = collectives.all_reduce(batch @ batch, "sum", dist.group.WORLD)  # bad
    gathered = collectives.all_gather_tensor(products.relu() @ batch, 0, dist.group.WORLD)  # bad
    return gathered[: len(batch)].tanh()


def main() -> None:
    begin()
    batch = torch.randn(160, 160, device=device) / 16
    for number in range(12):
        if bad and number == 7:
            continue  # bad
        batch = step(batch)  # bad
        if number % 4 == 3:
            synchronize()
    synchronize()
    dist.barrier()
    dist.destroy_process_group()


main()
