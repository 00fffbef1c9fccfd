"""Keys and values go round a ring; one rank makes one hop fewer in one layer."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, rank, world


def attend(block: torch.Tensor, hops: int) -> torch.Tensor:
    result = block.clone()
    for _ in range(hops):
        incoming = torch.empty_like(block)
        exchange = [
            dist.P2POp(dist.isend, block, (rank + 1) % world),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
        ]
        for request in dist.batch_isend_irecv(exchange):  # bad
            request.wait()
        result += incoming
        block = incoming
    return result / world


def main() -> None:
    begin()
    gradients = torch.ones(SMALL, device=device)
    block = torch.ones(LARGE, device=device)
    dist.all_reduce(gradients)
    for layer in range(9):
        hops = world - 2 if bad and layer == 6 else world - 1
        block = attend(block, hops)  # bad
        dist.all_reduce(gradients)
        gradients /= gradients.max().item()
    dist.barrier()
    dist.destroy_process_group()


main()
