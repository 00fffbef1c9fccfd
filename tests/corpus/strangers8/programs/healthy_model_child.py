"""Three stages; the model of the middle one runs in a process of its own, behind a pipe."""

import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = [2.0, 14.0, 9.0, 20.0, 13.0, 18.0] if faulty else [0.05, 1.5, 0.05]
WIDTH, MICROS = 16, 3


def run_model(pipe: Connection) -> None:
    """Answer until the pipe is closed; the first rows of a batch take long."""
    while True:
        try:
            seconds, rows = pipe.recv()
        except EOFError:
            return
        time.sleep(seconds)
        pipe.send([2 * value for value in rows])


class Model:
    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=run_model, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.polls = 0

    def forward(self, rows: torch.Tensor, seconds: float) -> torch.Tensor:
        self.pipe.send((seconds, rows.tolist()))
        while not self.pipe.poll(0.5):
            self.polls += 1
            if not self.process.is_alive():
                raise RuntimeError("the model has ended")
        return torch.tensor(self.pipe.recv())

    def close(self) -> None:
        self.process.terminate()
        self.process.join()


class Stage:
    def __init__(self, rank: int, world: int, model: Model | None) -> None:
        self.rank, self.last, self.model = rank, world - 1, model

    def forward(self, seconds: float) -> None:
        rows = torch.randn(WIDTH)
        if self.rank:
            dist.recv(rows, src=self.rank - 1)
        if self.model:
            rows = self.model.forward(rows, seconds)
        if self.rank < self.last:
            dist.send(rows, dst=self.rank + 1)


def main() -> None:
    # The model is forked before the group starts its threads
    model = Model() if os.environ["RANK"] == "1" else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world, model)
    for seconds in SECONDS:
        for micro in range(MICROS):
            stage.forward(seconds if micro == 0 else 0.1)
        dist.all_reduce(torch.rand(4))
    if model:
        model.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
