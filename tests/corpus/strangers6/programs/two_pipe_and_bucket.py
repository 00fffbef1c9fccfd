"""Two replicas: one reads what children write to pipes, one reduces buckets in background."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS = 12


class Reader:
    """Replica of ranks 0 to 2."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group

    def read(self, close: bool) -> bytes:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"sample " * 20)
            os._exit(0)
        if close:
            os.close(writing)
        content = b""
        while part := os.read(reading, 4096):
            content += part
        os.close(reading)
        os.waitpid(child, 0)
        return content

    def step(self, step: int) -> None:
        content = self.read(close=not (faulty and self.rank == 2 and step == 7))
        dist.all_reduce(torch.tensor([len(content)]), group=self.group)
        dist.broadcast(torch.randn(9), src=1, group=self.group)


class Reducer:
    """Replica of ranks 3 to 5."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.handles: list[dist.Work] = []

    def backward(self, overflows: bool) -> None:
        for bucket in range(4):
            if overflows and bucket == 3:
                raise OverflowError("the scale is too large")
            work = dist.all_reduce(torch.randn(32), group=self.group, async_op=True)
            self.handles.append(work)

    def step(self, step: int) -> None:
        with contextlib.suppress(OverflowError):
            self.backward(overflows=faulty and self.rank == 4 and step == 5)
        for handle in self.handles:
            handle.wait()
        self.handles.clear()
        norms = [torch.empty(1) for _ in range(3)]
        dist.all_gather(norms, torch.rand(1), group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first, second = dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])
    replica = Reader(rank, first) if rank < 3 else Reducer(rank, second)
    for step in range(STEPS):
        replica.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
