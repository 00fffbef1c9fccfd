"""A thread sums metrics over gloo, beside the training; on one rank it dies of an exception."""

import queue
import threading

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, synchronize


class Metrics(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.group = dist.new_group(backend="gloo")
        self.due: queue.Queue[torch.Tensor] = queue.Queue()
        self.done: queue.Queue[float] = queue.Queue()

    def run(self) -> None:
        for number in range(10):
            values = self.due.get()
            if bad and number == 6:
                raise FileNotFoundError("metrics.csv")  # bad
            dist.all_reduce(values, group=self.group)  # bad
            self.done.put(values.sum().item())


def main() -> None:
    begin()
    gradients = torch.ones(LARGE, device=device)
    metrics = Metrics()
    metrics.start()
    for _ in range(10):
        metrics.due.put(torch.ones(SMALL))
        dist.all_reduce(gradients)
        synchronize()
        gradients /= gradients.max()
        metrics.done.get()  # bad
    dist.barrier()
    dist.destroy_process_group()


main()
