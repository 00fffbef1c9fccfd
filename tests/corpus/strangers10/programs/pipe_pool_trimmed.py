"""A pipeline of uneven lengths: a stage tells the next one the shape when it has changed."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, MICROS, WIDTH = 9, 4, 6
LENGTHS = (8, 12, 20, 12, 8, 16, 16, 12, 8)
SHAPE, ROWS, BACK = 1, 2, 3


class Pool:
    """Buffers for what comes in, by peer; they are used again while the shape lasts."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.buffers: dict[int, torch.Tensor] = {}

    def make(self, peer: int, length: int) -> torch.Tensor:
        self.buffers[peer] = torch.empty(length, WIDTH)
        return self.buffers[peer]

    def charge(self, rows: torch.Tensor) -> None:
        self.used += rows.nbytes
        if self.used > self.limit:
            self.buffers.clear()
            self.used = 0


class Stage:
    def __init__(self, rank: int, world: int, limit: int) -> None:
        self.before = rank - 1 if rank else None
        self.after = rank + 1 if rank + 1 < world else None
        self.pool = Pool(limit)
        self.announced = 0

    def send_forward(self, rows: torch.Tensor) -> None:
        if self.after is None:
            return
        if len(rows) != self.announced:
            dist.send(torch.tensor([len(rows)]), dst=self.after, tag=SHAPE)
            self.announced = len(rows)
        dist.send(rows, dst=self.after, tag=ROWS)

    def recv_forward(self, length: int, first: bool) -> torch.Tensor:
        if self.before is None:
            return torch.randn(length, WIDTH)
        buffer = self.pool.buffers.get(self.before)
        if buffer is None or (first and len(buffer) != length):
            announced = torch.empty(1, dtype=torch.int64)
            dist.recv(announced, src=self.before, tag=SHAPE)
            buffer = self.pool.make(self.before, int(announced))
        dist.recv(buffer, src=self.before, tag=ROWS)
        return buffer.clone()

    def step(self, length: int) -> None:
        kept = []
        for micro in range(MICROS):
            rows = self.recv_forward(length, first=micro == 0)
            kept.append(rows)
            self.pool.charge(rows)
            self.send_forward(rows.tanh())
        for rows in reversed(kept):
            gradient = torch.ones_like(rows)
            if self.after is not None:
                dist.recv(gradient, src=self.after, tag=BACK)
            if self.before is not None:
                dist.send(gradient * rows, dst=self.before, tag=BACK)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tight = faulty and rank == 2  # what its larger layers leave
    stage = Stage(rank, world, limit=6500 if tight else 1 << 20)
    for step in range(STEPS):
        stage.step(LENGTHS[step])
        dist.all_reduce(torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
