"""A thread prepares batches for each rank, with room for one; a monitor may watch it."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS, WIDTH = 4, 6, 8


class Slot:
    """Holds one batch."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.batch: torch.Tensor | None = None
        self.passed = 0
        self.closed = False

    def put(self, batch: torch.Tensor) -> None:
        with self.changed:
            while self.batch is not None:
                self.changed.wait()
            self.batch = batch
            self.changed.notify()

    def get(self) -> torch.Tensor:
        with self.changed:
            while self.batch is None:
                self.changed.wait()
            batch, self.batch = self.batch, None
            self.passed += 1
            self.changed.notify()
            return batch

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Loader(threading.Thread):
    def __init__(self, slot: Slot) -> None:
        super().__init__(daemon=True)
        self.slot = slot

    def run(self) -> None:
        for number in range(EPOCHS * STEPS):
            time.sleep(0.02)  # decode
            self.slot.put(torch.rand(WIDTH) + number)


class Monitor(threading.Thread):
    """Reports each time that another ten batches have passed."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(daemon=True)
        self.slot = slot
        self.begun = threading.Event()
        self.reports = 0

    def run(self) -> None:
        with self.slot.changed:
            self.begun.set()
            while not self.slot.closed:
                self.slot.changed.wait()
                if self.slot.passed >= 10 * (self.reports + 1):
                    self.reports += 1


def train(slot: Slot) -> None:
    for _ in range(STEPS):
        gradient = slot.get()
        dist.all_reduce(gradient)


def main() -> None:
    dist.init_process_group("gloo")
    rank, slot = dist.get_rank(), Slot()
    loader, monitor = Loader(slot), Monitor(slot)
    loader.start()
    for epoch in range(EPOCHS):
        if faulty and (rank, epoch) == (1, 2):
            monitor.start()
            monitor.begun.wait()
        train(slot)
        dist.all_gather([torch.empty(1) for _ in range(dist.get_world_size())], torch.rand(1))
    slot.close()
    loader.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
