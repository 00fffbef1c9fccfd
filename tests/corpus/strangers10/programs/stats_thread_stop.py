"""A thread shares statistics all the time; it ends when the threads of all ranks agree to."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY = 30, 0.15


class Statistics:
    """Sums counters in a thread of its own, in a group of its own."""

    def __init__(self, keep: int) -> None:
        self.group = dist.new_group()
        self.keep = keep
        self.seen = 0
        self.history: list[float] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="statistics")

    def full(self) -> bool:
        return len(self.history) >= self.keep

    def _run(self) -> None:
        while not self.full():
            time.sleep(EVERY)
            total = torch.tensor([float(self.seen)])
            dist.all_reduce(total, group=self.group)
            self.history.append(total.item())
            ready = torch.tensor([int(self.stop.is_set())])
            dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=self.group)
            if ready.item():
                return

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


def work(rank: int, step: int) -> torch.Tensor:
    time.sleep(0.02 + 0.02 * ((rank + step) % 3))
    return torch.randn(12)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    short = faulty and rank == 3  # the setting of an earlier release, when rounds were longer
    statistics = Statistics(keep=4 if short else 4096)
    statistics.thread.start()
    for step in range(STEPS):
        gradient = work(rank, step)
        dist.all_reduce(gradient)
        statistics.seen += 1
    statistics.close()
    losses = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
