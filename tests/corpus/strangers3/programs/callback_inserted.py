"""A trainer with callbacks; a new one starts in the middle of the training."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Callback:
    def on_step_end(self, trainer: "Trainer") -> None:
        """Do nothing."""

    def on_epoch_end(self, trainer: "Trainer") -> None:
        """Do nothing."""


class Metrics(Callback):
    def on_epoch_end(self, trainer: "Trainer") -> None:
        dist.all_reduce(trainer.totals)


class Checkpoint(Callback):
    def on_epoch_end(self, trainer: "Trainer") -> None:
        parts = [torch.empty(32) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, trainer.weights)


class Averaging(Callback):
    """Averages the weights, from the epoch on in which it is added."""

    def on_epoch_end(self, trainer: "Trainer") -> None:
        dist.broadcast(trainer.weights, src=0)


class Trainer:
    def __init__(self) -> None:
        self.callbacks: list[Callback] = [Metrics(), Checkpoint()]
        self.weights, self.totals = torch.zeros(32), torch.zeros(4)

    def add(self, callback: Callback, *, first: bool) -> None:
        self.callbacks.insert(0 if first else len(self.callbacks), callback)

    def fit(self, epochs: int) -> None:
        for epoch in range(epochs):
            for _ in range(4):
                dist.all_reduce(torch.randn(32))
                for callback in self.callbacks:
                    callback.on_step_end(self)
            if epoch == 3:
                older = faulty and dist.get_rank() == 3  # this node has the release before
                self.add(Averaging(), first=older)
            for callback in self.callbacks:
                callback.on_epoch_end(self)


def main() -> None:
    dist.init_process_group("gloo")
    Trainer().fit(epochs=8)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
