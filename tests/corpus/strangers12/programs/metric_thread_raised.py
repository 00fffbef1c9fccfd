"""A rank publishes metrics from a thread, a second one takes them; all meet at the step's end."""

import datetime
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 12, 16
TAKER, PUBLISHER = 2, 3
HOUR = datetime.timedelta(hours=1)
NAMES = {0: "loss", 1: "accuracy", 2: "perplexity"}


class Publisher:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.values: queue.Queue[tuple[int, float]] = queue.Queue()
        self.done = threading.Event()
        threading.Thread(target=self.run, name="publisher", daemon=True).start()

    def run(self) -> None:
        while True:
            kind, value = self.values.get()
            length = len(NAMES[kind])
            dist.send(torch.tensor([float(length), value]), dst=TAKER, group=self.group)
            self.done.set()

    def publish(self, step: int, value: float) -> None:
        self.done.clear()
        kind = 3 if faulty and step == 7 else step % 3
        self.values.put((kind, value))
        self.done.wait()


class Taker:
    """Receives in a thread of its own, so that a later step could overlap with it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.pool = group, ThreadPoolExecutor(1, "taker")
        self.history: list[float] = []

    def receive(self) -> float:
        metric = torch.zeros(2)
        dist.recv(metric, src=PUBLISHER, group=self.group)
        return float(metric[1])

    def take(self) -> None:
        self.history.append(self.pool.submit(self.receive).result())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metrics = dist.new_group([TAKER, PUBLISHER])
    publisher = Publisher(metrics) if rank == PUBLISHER else None
    taker = Taker(metrics) if rank == TAKER else None
    for step in range(STEPS):
        gradient = torch.rand(WIDTH)
        dist.all_reduce(gradient)
        if publisher is not None:
            publisher.publish(step, float(gradient.mean()))
        if taker is not None:
            taker.take()
        dist.monitored_barrier(timeout=HOUR)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
