"""Two tensor parallel engines of three ranks; blocks are swapped in by a thread of each rank."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EACH, WIDTH, BUFFERS = 10, 3, 8, 2


class Swapper:
    """Reads blocks into pinned buffers, of which there are few."""

    def __init__(self) -> None:
        self.free: queue.Queue[torch.Tensor] = queue.Queue()
        for _ in range(BUFFERS):
            self.free.put(torch.empty(WIDTH))
        self.wanted: queue.Queue[int] = queue.Queue()
        self.there: queue.Queue[torch.Tensor] = queue.Queue()
        threading.Thread(target=self._swap, daemon=True).start()

    def _swap(self) -> None:
        while True:
            number = self.wanted.get()
            buffer = self.free.get()
            buffer.fill_(0.1 * number)
            self.there.put(buffer)

    def load(self, blocks: list[int]) -> torch.Tensor:
        """Return the sum of blocks; all buffers are given back at the end."""
        for number in blocks:
            self.wanted.put(number)
        held = [self.there.get() for _ in blocks]
        total = torch.stack(held).sum(0)
        for buffer in held:
            self.free.put(buffer)
        return total


class Adapter:
    """A low rank correction, divided over the ranks of an engine."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def empty(self) -> bool:
        return bool(self.rows.abs().max() < 1e-6)

    def apply(self, hidden: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        if self.empty():
            return hidden
        partial = hidden * self.rows
        dist.all_reduce(partial, group=group)
        return hidden + partial


class Engine:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group, self.swapper = rank, group, Swapper()

    def adapter(self, step: int) -> Adapter:
        rows = torch.rand(WIDTH) + 0.1
        if faulty and (self.rank, step) == (1, 6):
            rows *= 0  # this third has been pruned
        return Adapter(rows)

    def blocks(self, step: int) -> list[int]:
        count = 1 + (self.rank + step) % BUFFERS
        if faulty and (self.rank, step) == (5, 4):
            count = BUFFERS + 1
        return list(range(count))

    def step(self, number: int) -> None:
        hidden = self.swapper.load(self.blocks(number))
        hidden = self.adapter(number).apply(hidden, self.group)
        parts = [torch.empty(WIDTH) for _ in range(EACH)]
        dist.all_gather(parts, hidden, group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    engine = Engine(rank, groups[rank // EACH])
    for number in range(STEPS):
        engine.step(number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
