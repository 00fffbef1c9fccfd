"""DDP with uneven inputs under join(): ranks that are through shadow the calls of the others."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
EPOCHS = 2 if faulty else 1
BATCHES = [14, 12, 17, 21] if faulty else [3, 2, 4, 5]
SLOW, TAIL = (11.0, 4.0) if faulty else (0.1, 0.05)


class Documents:
    """Batches of one rank, of which the last ones are long documents.

    Args:
        rank: Whose.
        count: How many there are.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def __iter__(self):
        for number in range(self.count):
            if number >= min(BATCHES):
                self.parse(TAIL)
            elif number % 7 == self.rank:
                self.parse(SLOW)
            yield torch.randn(8, 20), torch.randint(3, (8,))

    def parse(self, seconds: float) -> None:
        """Split a document into words again and again; the library is a slow one."""
        ends = time.monotonic() + seconds
        words: dict[str, int] = {}
        while time.monotonic() < ends:
            for word in ("the quick brown fox jumps over the lazy dog " * 50).split():
                words[word] = words.get(word, 0) + 1


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, documents: Documents
) -> int:
    seen = 0
    with model.join():
        for rows, labels in documents:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            seen += len(rows)
    return seen


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        seen = train_epoch(model, optimizer, Documents(rank, BATCHES[rank]))
        total = torch.tensor([seen])
        dist.all_reduce(total)
        if rank == 0:
            print(int(total), "rows")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
