"""Pipelined inference: what a stage sends is put together and posted in batches."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, MICROS, WIDE, NARROW = 12, 6, 512, 96
BATCH_KIB = 4


class Outbox:
    """Gathers sends to one peer, and posts them together once there is enough of them."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.operations: list[dist.P2POp] = []
        self.works: list[dist.Work] = []
        self.kib = 0

    def put(self, rows: torch.Tensor) -> None:
        self.operations.append(dist.P2POp(dist.isend, rows, self.peer))
        self.kib += rows.nbytes // 1024
        if self.kib >= BATCH_KIB:
            self.post()

    def post(self) -> None:
        self.works += dist.batch_isend_irecv(self.operations)
        self.operations, self.kib = [], 0

    def close(self) -> None:
        if self.kib:
            self.post()
        for work in self.works:
            work.wait()
        self.works.clear()


def widths(world: int, step: int) -> list[int]:
    """How wide rows are after each stage; a stage may project them down."""
    wide = [WIDE - 8 * (step % 3)] * (world - 1)
    if faulty and step >= 6:
        wide[1] = NARROW  # the adapter of these requests has a bottleneck there
    return wide


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.outbox = Outbox(rank + 1) if rank + 1 < world else None

    def take(self, width: int) -> torch.Tensor:
        rows = torch.empty(width)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, rows, self.rank - 1)]):
            work.wait()
        return rows

    def run(self, step: int) -> torch.Tensor:
        wide = widths(self.world, step)
        result = torch.zeros(4)
        for _ in range(MICROS):
            rows = torch.randn(WIDE) if self.rank == 0 else self.take(wide[self.rank - 1])
            if self.outbox is None:
                result += rows[:4].tanh()
            else:
                self.outbox.put(rows.mean().expand(wide[self.rank]).clone())
        if self.outbox is not None:
            self.outbox.close()
        return result


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    for step in range(STEPS):
        result = stage.run(step)
        dist.broadcast(result, src=world - 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
