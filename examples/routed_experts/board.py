"""Figures of all processes, in memory that they share: to be read while they run or hang."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from plan import Plan

__all__ = ["Board", "Entry"]

FIELDS = (
    "steps",  # that were run
    "stall_us",  # engine: longest time between two polls for arrivals
    "busy_since_us",  # engine: when it last polled for arrivals; 0 while it waits for more
    "experts_us",  # engine: the most of one such time that went into routing
    "agree_us",  # engine: longest wait for the other engines
    "ended",  # engine: the most requests that ended in one step
    "preemptions",
    "cached_tokens",  # that a prefix-cache hit spared
    "wait_us",  # worker: longest collective
    "save_us",  # worker: longest time for one step that went into the old way
    "wrong_rows",  # worker: rows that a collective returned wrongly
    "failed",  # whether a collective has failed
)
_LARGEST = ("steps", "ended")


class Entry:
    """One process's figures. Nobody else writes them.

    Args:
        board: All figures.
        row: The process.
    """

    def __init__(self, board: Board, row: int) -> None:
        self._numbers = board.numbers[row]

    def set(self, field: str, number: int) -> None:
        """Set a figure."""
        self._numbers[FIELDS.index(field)] = number

    def add(self, field: str, amount: int = 1) -> None:
        """Add to a figure."""
        self._numbers[FIELDS.index(field)] += amount

    def most(self, field: str, seconds: float) -> None:
        """Keep the longest time."""
        self.largest(field, int(seconds * 1e6))

    def largest(self, field: str, number: int) -> None:
        """Keep the largest number."""
        place = FIELDS.index(field)
        self._numbers[place] = max(int(self._numbers[place]), number)


class Board:
    """The figures: workers by global rank, then engines.

    Args:
        plan: Of the run.
        create: Whether to begin with zeros.
    """

    def __init__(self, plan: Plan, *, create: bool = False) -> None:
        self.plan = plan
        path = Path(plan.board)
        size = (plan.world_size + plan.dp, len(FIELDS))
        self.numbers = np.memmap(path, np.int64, "w+" if create else "r+", shape=size)

    def worker(self, rank: int) -> Entry:
        """Return a worker's entry."""
        return Entry(self, rank)

    def engine(self, replica: int) -> Entry:
        """Return an engine's entry."""
        return Entry(self, self.plan.world_size + replica)

    def total(self, field: str) -> int:
        """Return the sum over all processes."""
        return int(self.numbers[:, FIELDS.index(field)].sum())

    def stall_under_way(self) -> None:
        """Count what engines are at as a stall, where the job is about to be ended."""
        since = self.numbers[:, FIELDS.index("busy_since_us")]
        stall = self.numbers[:, FIELDS.index("stall_us")]
        now = time.monotonic_ns() // 1000
        stall[since > 0] = np.maximum(stall, now - since)[since > 0]

    def figures(self) -> dict[str, int]:
        """Return all: times and steps as the largest of all processes, the others as sums."""
        most = self.numbers.max(axis=0).tolist()
        total = self.numbers.sum(axis=0).tolist()
        return {
            field: (most if field in _LARGEST or field.endswith("_us") else total)[place]
            for place, field in enumerate(FIELDS)
        }
