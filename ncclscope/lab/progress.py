"""How far each rank has come, in a few numbers that all processes share.

The launcher looks here and not into the rings, so that it notices a stall by other means
than those it is about to demonstrate.
"""

from __future__ import annotations

import enum
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Phase", "Progress", "ProgressBoard", "ProgressEntry", "RankProgress"]

_FIELDS = 5
_PHASE, _STEP, _POSTED, _COMPLETED, _WRONG = range(_FIELDS)


class Phase(enum.IntEnum):
    """What a rank process is at."""

    STARTING = 0
    RUNNING = 1
    BROKEN = 2
    """A collective raised an error, and the rank stays where it is."""
    FINISHED = 3


@dataclass(frozen=True)
class RankProgress:
    """One rank's numbers.

    Attributes:
        phase: What the process is at.
        step: Step it is in, from 1; 0 before the first.
        posted: Collectives its host has posted.
        completed: Those of them that have completed.
        wrong_since: First step with a wrong result; 0 when all were right.
    """

    phase: Phase
    step: int
    posted: int
    completed: int
    wrong_since: int


@dataclass(frozen=True)
class Progress:
    """All ranks' numbers at one moment.

    Attributes:
        elapsed: Seconds since the laboratory was opened.
        ranks: By global rank.
    """

    elapsed: float
    ranks: tuple[RankProgress, ...]

    @property
    def ready(self) -> int:
        """Ranks that have joined their groups and begun."""
        return sum(rank.phase is not Phase.STARTING for rank in self.ranks)

    @property
    def step(self) -> int:
        """Step of the rank that is farthest."""
        return max(rank.step for rank in self.ranks)

    @property
    def slowest(self) -> int:
        """Step of the rank that is least far."""
        return min(rank.step for rank in self.ranks)

    @property
    def calls(self) -> int:
        """Collectives posted by all ranks together."""
        return sum(rank.posted for rank in self.ranks)


class ProgressBoard:
    """The shared numbers, five for each rank.

    Args:
        path: The file; made with zeros by :meth:`create`.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path, ranks: int) -> ProgressBoard:
        """Makes the file for so many ranks."""
        path.write_bytes(bytes(8 * _FIELDS * ranks))
        return cls(path)

    def entry(self, rank: int) -> ProgressEntry:
        """Returns the numbers of one rank, to write them."""
        return ProgressEntry(self._numbers[rank * _FIELDS : (rank + 1) * _FIELDS])

    def read(self) -> tuple[RankProgress, ...]:
        """Returns the numbers of all ranks."""
        rows = (
            self._numbers[start : start + _FIELDS].tolist()
            for start in range(0, len(self._numbers), _FIELDS)
        )
        return tuple(RankProgress(Phase(row[_PHASE]), *row[_STEP:]) for row in rows)

    def close(self) -> None:
        """Lets go of the file."""
        self._numbers.release()
        self._map.close()


class ProgressEntry:
    """One rank's numbers; each is written by one thread only."""

    def __init__(self, numbers: memoryview[int]) -> None:
        self._numbers = numbers

    def enter(self, phase: Phase) -> None:
        """Notes what the process is at now."""
        self._numbers[_PHASE] = phase

    def begin(self, step: int) -> None:
        """Notes that a step begins."""
        self._numbers[_STEP] = step

    def post(self) -> None:
        """Counts a collective that is posted."""
        self._numbers[_POSTED] += 1

    def complete(self) -> None:
        """Counts a collective that has completed."""
        self._numbers[_COMPLETED] += 1

    def note_wrong(self, step: int) -> None:
        """Notes that a step's result was wrong."""
        if not self._numbers[_WRONG]:
            self._numbers[_WRONG] = step
