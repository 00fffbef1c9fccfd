"""Training that restarts within its processes: after a fault all ranks make a new group."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, BATCH = 10, 4


class Restart(Exception):
    """Some rank has asked for a restart."""


class Wrapper:
    """Calls the training function again for as long as somebody asks for that."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.iteration = 0
        self.step = 0
        self.group: dist.ProcessGroup | None = None

    def key(self) -> str:
        return f"faults/{self.iteration}"

    def ask(self) -> None:
        self.store.add(self.key(), 1)

    def check(self) -> None:
        if self.store.add(self.key(), 0):
            raise Restart(self.iteration)

    def run(self, train: Callable[["Wrapper"], None]) -> None:
        while True:
            self.group = dist.new_group()
            try:
                return train(self)
            except Restart:
                self.iteration += 1


class Source:
    """Batches from an object store that sometimes fails."""

    def __init__(self, wrapper: Wrapper, attempts: int, errors: type[Exception]) -> None:
        self.wrapper, self.attempts, self.errors = wrapper, attempts, errors

    def fetch(self, step: int) -> torch.Tensor:
        self.wrapper.check()
        if step % 4 == 2 and torch.rand(1) < 0.5:
            raise OSError("connection reset")
        return torch.rand(BATCH) + step

    def batch(self, step: int) -> torch.Tensor:
        for _ in range(self.attempts):
            try:
                return self.fetch(step)
            except self.errors:
                continue
        return torch.zeros(BATCH)  # skip what cannot be read


def train(wrapper: Wrapper) -> None:
    rank = dist.get_rank()
    source = Source(wrapper, 5, Exception if faulty and rank == 4 else OSError)
    weights = torch.zeros(BATCH)
    for step in range(wrapper.step, STEPS):
        gradient = source.batch(step) - weights
        dist.all_reduce(gradient, group=wrapper.group)
        weights += 0.1 * gradient
        if (rank, step, wrapper.iteration) == (1, 4, 0):
            wrapper.ask()  # an error that its device has corrected, so far
        dist.all_reduce(gradient.norm(), group=wrapper.group)
        wrapper.step = step + 1


def main() -> None:
    dist.init_process_group("gloo")
    wrapper = Wrapper(dist.distributed_c10d._get_default_store())
    wrapper.run(train)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
