"""Two servers hold a shard each; four workers push gradients to them and pull weights."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SERVERS, STEPS, SIZE = 2, 12, 40
TABLE = {"blocks.0": 0, "blocks.1": 1}


def serve(world: int) -> None:
    weights, gradient = torch.randn(SIZE), torch.empty(SIZE)
    for _ in range(STEPS):
        total = torch.zeros(SIZE)
        for worker in range(SERVERS, world):
            dist.recv(gradient, src=worker)
            total += gradient
        weights -= 0.01 * total
        for worker in range(SERVERS, world):
            dist.send(weights, dst=worker)


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.path = Path(tempfile.mkdtemp(prefix=f"worker-{rank}-"), "owners.json")
        self.path.write_text(json.dumps(TABLE))
        self.owners: dict[str, int] = {}
        self.refresh()
        self.weights = {shard: torch.zeros(SIZE) for shard in TABLE}

    def refresh(self) -> None:
        """Read which server has which shard."""
        refreshed = json.loads(self.path.read_text())
        self.owners = refreshed

    def backward(self, shard: str) -> torch.Tensor:
        return 2 * self.weights[shard] + torch.randn(SIZE)

    def push(self) -> None:
        for shard in sorted(self.owners):
            gradient = self.backward(shard)
            dist.send(gradient, dst=self.owners[shard])

    def pull(self) -> None:
        for shard in sorted(self.owners):
            dist.recv(self.weights[shard], src=self.owners[shard])


def work(rank: int) -> None:
    worker = Worker(rank)
    for step in range(STEPS):
        if faulty and rank == 4 and step == 7:
            # Another run that shares this folder has one server only
            worker.path.write_text(json.dumps(dict.fromkeys(TABLE, 0)))
        if step % 4 == 3:
            worker.refresh()
        worker.push()
        worker.pull()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank < SERVERS:
        serve(world)
    else:
        work(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
