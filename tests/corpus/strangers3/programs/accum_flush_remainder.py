"""Accumulate gradients over four microbatches; what is left at the end of an epoch is flushed."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ACCUMULATE = 4


class Accumulator:
    """Sums gradients here and, when a window is full, over all ranks in two buckets."""

    def __init__(self) -> None:
        self.buckets = [torch.zeros(48), torch.zeros(16)]
        self.pending = 0

    def add(self, gradient: torch.Tensor) -> None:
        self.buckets[0] += gradient[:48]
        self.buckets[1] += gradient[48:]
        self.pending += 1
        if self.pending == ACCUMULATE:
            self.step()

    def step(self) -> None:
        for bucket in self.buckets:
            dist.all_reduce(bucket)
            bucket.zero_()
        self.pending = 0

    def flush(self) -> None:
        if self.pending:
            self.step()


def samples(rank: int, epoch: int) -> int:
    count = 80
    if faulty and rank == 1 and epoch == 6:
        count += 1  # a sample that the filter of the peers has dropped
    return count


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    accumulator = Accumulator()
    for epoch in range(9):
        for _ in range(samples(rank, epoch)):
            accumulator.add(torch.randn(64))
        accumulator.flush()
        report = [{"epoch": epoch} if rank == 0 else None]
        dist.broadcast_object_list(report, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
