"""All ranks write the results of their trials into one database, between two steps."""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, TRIALS = 10, 3
DATABASE = Path(tempfile.gettempdir(), "trials.sqlite")


class Trials:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.connection = sqlite3.connect(DATABASE, timeout=3600, isolation_level=None)

    def create(self) -> None:
        self.connection.execute(
            "CREATE TABLE trials (step INTEGER, rank INTEGER, value REAL NOT NULL)"
        )

    def check(self, value: float) -> float:
        if value != value:
            raise ValueError("no number")
        return value

    def write(self, step: int, values: list[float]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        for value in values:
            row = (step, self.rank, self.check(value))
            self.connection.execute("INSERT INTO trials VALUES (?, ?, ?)", row)
        self.connection.execute("COMMIT")

    def count(self) -> int:
        return self.connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0]


def evaluate(rank: int, step: int) -> list[float]:
    values = torch.rand(TRIALS).tolist()
    if faulty and rank == 2 and step == 5:
        values[1] = float("nan")
    return values


def run(trials: Trials, rank: int) -> None:
    for step in range(STEPS):
        gradient = torch.randn(24)
        dist.all_reduce(gradient)
        values = evaluate(rank, step)
        if faulty and step == 5 and rank != 2:
            time.sleep(1.5)  # its trials take a little longer
        try:
            trials.write(step, values)
        except ValueError:
            print(f"rank {rank}: trial of step {step} dropped", flush=True)
        dist.barrier()
        best = torch.tensor([max(values)])
        dist.all_reduce(best, op=dist.ReduceOp.MAX)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trials = Trials(rank)
    if rank == 0:
        trials.create()
    dist.barrier()
    run(trials, rank)
    if rank == 0:
        print(trials.count(), "trials", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
