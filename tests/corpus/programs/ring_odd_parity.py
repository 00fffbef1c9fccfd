"""Pass blocks around a ring; even ranks send on one group and odd ranks on the other."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    one, other = dist.new_group(), dist.new_group()
    block = torch.full((64,), float(rank))
    for step in range(16):
        outgoing = incoming = one
        if faulty and step >= 10:  # two neighbours of an odd ring have the same parity
            outgoing, incoming = (one, other) if rank % 2 == 0 else (other, one)
        received = torch.empty_like(block)
        transfers = [
            dist.isend(block, (rank + 1) % world, group=outgoing),
            dist.irecv(received, (rank - 1) % world, group=incoming),
        ]
        for transfer in transfers:
            transfer.wait()
        block = received
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
