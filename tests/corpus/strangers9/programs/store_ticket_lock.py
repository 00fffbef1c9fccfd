"""Ranks write to one file in turn: a ticket lock in the store."""

import json
import pathlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, SIZE = 8, 17


class TicketLock:
    """First come, first served."""

    def __init__(self, store: dist.Store, name: str) -> None:
        self.store, self.next, self.serving = store, f"{name}/next", f"{name}/serving"

    def draw(self) -> int:
        return self.store.add(self.next, 1) - 1

    def wait(self, ticket: int) -> None:
        while self.store.add(self.serving, 0) != ticket:
            time.sleep(0.1)

    def release(self) -> None:
        self.store.add(self.serving, 1)

    @contextmanager
    def turn(self, ticket: int) -> Iterator[None]:
        self.wait(ticket)
        try:
            yield
        finally:
            self.release()


class Journal:
    def __init__(self, rank: int, place: pathlib.Path, lock: TicketLock) -> None:
        self.rank, self.place, self.lock = rank, place, lock

    def lines(self, number: int, losses: torch.Tensor) -> list[str]:
        kept = losses[losses > 0.02]
        if faulty and self.rank == 1 and number == 5:
            kept = losses[losses > 2.0]  # only outliers, after a reload of the settings
        return [json.dumps({"rank": self.rank, "round": number, "loss": loss.item()})
                for loss in kept]  # fmt: skip

    def append(self, number: int, losses: torch.Tensor) -> None:
        time.sleep(0.3 * self.rank)  # no crowd at the server
        ticket = self.lock.draw()
        lines = self.lines(number, losses)
        if not lines:
            return
        with self.lock.turn(ticket), self.place.open("a") as file:
            file.write("\n".join(lines) + "\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    lock = TicketLock(dist.distributed_c10d._get_default_store(), "journal")
    journal = Journal(rank, pathlib.Path("journal.jsonl"), lock)
    for number in range(ROUNDS):
        losses = torch.rand(SIZE)
        journal.append(number, losses)
        dist.all_reduce(losses)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
