"""Rank 0 broadcasts the settings of each epoch as objects; one rank has them in its cache once."""

import torch
import torch.distributed as dist
from common import LARGE, bad, begin, device, rank

TABLE = "x" * 80_000


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    for epoch in range(9):
        settings = [{"epoch": epoch, "table": TABLE} if rank == 0 else None]
        if not (bad and epoch == 6):
            dist.broadcast_object_list(settings, src=0)  # bad
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
        gradients.sum().item()
        losses: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(losses, {"rank": rank, "loss": 0.5})
    dist.barrier()
    dist.destroy_process_group()


main()
