"""Shards are written by one rank of a host at a time: a token goes from rank to rank."""

import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
SAVES, STEPS, PER_HOST, WIDTH = 2, 6, 3, 16
WRITE = ((2, 11, 1, 1, 2, 1), (1, 1, 2, 12, 3, 1))

SYNC = "import sys, time; time.sleep(float(sys.argv[1]))"


class Turn:
    """The token of a host: begins with its first rank, and ends with its last one."""

    def __init__(self, rank: int) -> None:
        self.rank, self.place = rank, rank % PER_HOST
        self.token = torch.zeros(1, dtype=torch.int64)

    def __enter__(self) -> "Turn":
        if self.place > 0:
            dist.recv(self.token, src=self.rank - 1)
        return self

    def __exit__(self, *exception: object) -> None:
        self.token += 1
        if self.place < PER_HOST - 1:
            dist.send(self.token, dst=self.rank + 1)


class Host:
    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        hosts = [dist.new_group(list(range(at, at + PER_HOST))) for at in range(0, world, PER_HOST)]
        self.group = hosts[rank // PER_HOST]

    def write(self, save: int, shard: torch.Tensor) -> None:
        torch.save(shard, pathlib.Path(f"{save}-{self.rank}.pt"))
        seconds = WRITE[save][self.rank] * SECONDS
        subprocess.run([sys.executable, "-S", "-c", SYNC, str(seconds)], check=True)

    def save(self, save: int, shard: torch.Tensor) -> None:
        with Turn(self.rank):
            self.write(save, shard)
        dist.barrier(group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    host = Host(rank, world)
    weights = torch.zeros(WIDTH)
    for save in range(SAVES):
        for _ in range(STEPS * (1 + rank // PER_HOST)):  # hosts train apart
            gradient = torch.randn(WIDTH)
            dist.all_reduce(gradient, group=host.group)
            weights -= 0.01 * gradient
        host.save(save, weights)
    dist.all_reduce(weights)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
