"""Two expert groups of four ranks; long batches are dispatched and combined in chunks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
CHUNK = 16


class Experts:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def _exchange(self, rows: torch.Tensor) -> torch.Tensor:
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows, group=self.group)
        return arrived

    def forward(self, chunks: int) -> None:
        for _ in range(chunks):
            dispatched = self._exchange(torch.randn(CHUNK))
            self._exchange(dispatched.relu())


def tokens_of(rank: int, step: int) -> int:
    tokens = CHUNK if step < 4 else 3 * CHUNK  # short prompts while warming up
    if faulty and step == 10:
        if rank == 6:
            tokens -= CHUNK  # padding has been cut off
        if rank == 1:
            tokens += 1  # one token more than fits
    return tokens


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2, 3]), dist.new_group([4, 5, 6, 7])]
    experts = Experts(groups[rank // 4])
    for step in range(14):
        tokens = tokens_of(rank, step)
        chunks = -(-tokens // CHUNK)  # of this rank; should be the most of all
        for _ in range(2):
            experts.forward(chunks)
        dist.all_reduce(torch.tensor([tokens]), op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
