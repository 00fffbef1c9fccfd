"""A loss over a sharded vocabulary, computed in chunks of the longest text of its group."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
CHUNK = 32


class ChunkedLoss:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.lengths: dict[int, int] = {}

    def longest(self, bucket: int, length: int) -> int:
        """Agree on the length to pad to; once for a bucket."""
        if bucket not in self.lengths:
            found = torch.tensor([length])
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
            self.lengths[bucket] = int(found)
        return self.lengths[bucket]

    def __call__(self, logits: torch.Tensor, bucket: int) -> torch.Tensor:
        length = self.longest(bucket, len(logits))
        loss = torch.zeros(1)
        for start in range(0, length, CHUNK):
            rows = torch.zeros(CHUNK)
            piece = logits[start : start + CHUNK]
            rows[: len(piece)] = piece
            dist.all_reduce(rows, op=dist.ReduceOp.MAX, group=self.group)
            dist.all_reduce(rows.exp(), group=self.group)
            loss += rows.sum()
        return loss


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, first + 1, first + 2]) for first in (0, 3)]
    loss = ChunkedLoss(groups[rank // 3])
    for step in range(15):
        bucket = step % 5
        if faulty and rank == 0 and step == 11:
            loss.lengths[bucket] = 40 + 16 * bucket  # a second cache, of lengths of its own
        value = loss(torch.randn(40 + 16 * bucket + 12 * (rank % 3)), bucket)
        values = [torch.empty(1) for _ in range(world)]
        dist.all_gather(values, value)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
