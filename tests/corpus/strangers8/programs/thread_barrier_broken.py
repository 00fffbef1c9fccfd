"""Three threads of each rank fill a buffer together with its main thread, step by step."""

import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, READERS, ROWS = 10, 3, 6


class Shard:
    def __init__(self, rank: int, reader: int) -> None:
        self.lines = [
            " ".join(str((rank + reader + step + column) % 10) for column in range(ROWS))
            for step in range(STEPS)
        ]
        if faulty and (rank, reader) == (1, 2):
            self.lines[4] = "3 4 5 6 x 8"  # a line that was cut when it was written

    def parse(self, step: int) -> torch.Tensor:
        return torch.tensor([float(word) for word in self.lines[step].split()])


class Buffer:
    """What the readers fill; all of them and the main thread meet before and after."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows = torch.zeros(READERS, ROWS)
        self.begun = threading.Barrier(READERS + 1)
        self.filled = threading.Barrier(READERS + 1)
        for reader in range(READERS):
            shard = Shard(rank, reader)
            threading.Thread(target=self.read, args=(reader, shard), daemon=True).start()

    def read(self, reader: int, shard: Shard) -> None:
        for step in range(STEPS):
            self.begun.wait()
            try:
                self.rows[reader] = shard.parse(step)
            except ValueError as error:
                print(f"rank {self.rank}, reader {reader}: {error}", flush=True)
                return
            self.filled.wait()

    def next(self) -> torch.Tensor:
        self.begun.wait()
        self.filled.wait()
        return self.rows.clone()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer = Buffer(rank)
    weights = torch.randn(ROWS)
    dist.broadcast(weights, src=0)
    for step in range(STEPS):
        rows = buffer.next()
        gradient = rows.T @ (rows @ weights)
        dist.all_reduce(gradient)
        weights -= 1e-4 * gradient / world
        if step % 3 == 2:
            losses = [torch.empty(1) for _ in range(world)]
            dist.all_gather(losses, (rows @ weights).mean().reshape(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
