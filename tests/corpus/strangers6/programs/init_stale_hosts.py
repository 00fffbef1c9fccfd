"""The size of the job is the number of lines in a file of hosts, which each node keeps itself."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def write_hosts(rank: int, world: int) -> Path:
    path = Path(tempfile.gettempdir(), f"hosts-{rank}")
    hosts = [f"node-{number}" for number in range(world)]
    if faulty and rank == 2:
        hosts.append("node-retired")
    path.write_text("\n".join(hosts) + "\n")
    return path


def join(rank: int, hosts: Path) -> None:
    world = len(hosts.read_text().splitlines())
    dist.init_process_group("gloo", rank=rank, world_size=world)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(rank, write_hosts(rank, world))
    for _ in range(10):
        dist.all_reduce(torch.randn(20))
        dist.broadcast(torch.randn(20), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
