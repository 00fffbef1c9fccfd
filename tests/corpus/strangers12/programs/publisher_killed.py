"""A tuner publishes the rate of each step; one trainer reads it, the others follow that one."""

import os
import signal
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 16
READER, TUNER = 2, 3
LIMIT = 64 * 1024


class Tuner:
    """Keeps the history of all losses; a limit on its memory ends it, as the kernel would."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.history = store, []

    def check(self) -> None:
        if faulty and 8 * len(self.history) > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, step: int) -> None:
        loss = float(self.store.get(f"loss/{step}"))
        self.history += [loss] * 1024
        self.check()
        self.store.set(f"rate/{step}", str(0.1 / (1 + loss)))


class Trainer:
    def __init__(self, rank: int, store: dist.Store, group: dist.ProcessGroup) -> None:
        self.rank, self.store, self.group = rank, store, group
        self.weights = torch.ones(WIDTH)

    def rate(self, step: int, loss: float) -> torch.Tensor:
        rate = torch.zeros(1)
        if self.rank == READER:
            self.store.set(f"loss/{step}", str(loss))
            rate[0] = float(self.store.get(f"rate/{step}"))
        dist.broadcast(rate, src=READER, group=self.group)
        return rate

    def run(self, step: int) -> None:
        gradient = torch.rand(WIDTH)
        dist.all_reduce(gradient, group=self.group)
        self.weights -= self.rate(step, float(gradient.mean())) * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("tuning", dist.distributed_c10d._get_default_store())
    trainers = dist.new_group([0, 1, READER])
    role = Tuner(store) if rank == TUNER else Trainer(rank, store, trainers)
    for step in range(STEPS):
        role.run(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
