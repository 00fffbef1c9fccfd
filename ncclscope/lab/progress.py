"""Progress of each rank, in counters that all processes share.

The launcher reads these and not the rings, so that it detects a stall independently of the records
that it is about to demonstrate.
"""

from __future__ import annotations

import enum
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

_FIELDS = 5
_PHASE, _STEP, _POSTED, _COMPLETED, _WRONG = range(_FIELDS)


class Phase(enum.IntEnum):
    """State of a rank process."""

    STARTING = 0
    RUNNING = 1
    BROKEN = 2
    """A collective raised an error; the rank sleeps."""
    FINISHED = 3


@dataclass(frozen=True)
class RankProgress:
    """Progress of one rank.

    Attributes:
        phase: State of the process.
        step: Current step, from 1; 0 before the first.
        posted: Number of posted collectives.
        completed: Number of completed collectives.
        wrong_since: First step with a wrong result; 0 if all were right.
    """

    phase: Phase
    step: int
    posted: int
    completed: int
    wrong_since: int


@dataclass(frozen=True)
class Progress:
    """Progress of all ranks at one moment.

    Attributes:
        elapsed: Seconds since the start of the laboratory.
        ranks: Progress by global rank.
    """

    elapsed: float
    ranks: tuple[RankProgress, ...]

    @property
    def ready(self) -> int:
        """Number of ranks that have joined their groups and started."""
        return sum(rank.phase is not Phase.STARTING for rank in self.ranks)

    @property
    def step(self) -> int:
        """Step of the farthest rank."""
        return max(rank.step for rank in self.ranks)

    @property
    def calls(self) -> int:
        """Collectives posted by all ranks together."""
        return sum(rank.posted for rank in self.ranks)


class ProgressBoard:
    """Shared counters, five 64-bit integers per rank.

    Args:
        path: File of the counters; :meth:`create` makes it.
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
        """Create the file for ``ranks`` ranks, all counters 0."""
        path.write_bytes(bytes(8 * _FIELDS * ranks))
        return cls(path)

    def entry(self, rank: int) -> ProgressEntry:
        """Return the counters of one rank, for writing."""
        return ProgressEntry(self._numbers[rank * _FIELDS : (rank + 1) * _FIELDS])

    def read(self) -> tuple[RankProgress, ...]:
        """Return the progress of all ranks."""
        rows = (
            self._numbers[start : start + _FIELDS].tolist()
            for start in range(0, len(self._numbers), _FIELDS)
        )
        return tuple(RankProgress(Phase(row[_PHASE]), *row[_STEP:]) for row in rows)

    def close(self) -> None:
        """Close the file."""
        self._numbers.release()
        self._map.close()


class ProgressEntry:
    """Counters of one rank; each has a single writing thread."""

    def __init__(self, numbers: memoryview[int]) -> None:
        self._numbers = numbers

    def enter(self, phase: Phase) -> None:
        """Set the state of the process."""
        self._numbers[_PHASE] = phase

    def begin(self, step: int) -> None:
        """Set the current step."""
        self._numbers[_STEP] = step

    def post(self) -> None:
        """Count a posted collective."""
        self._numbers[_POSTED] += 1

    def complete(self) -> None:
        """Count a completed collective."""
        self._numbers[_COMPLETED] += 1

    def note_wrong(self, step: int) -> None:
        """Record the first step with a wrong result."""
        if not self._numbers[_WRONG]:
            self._numbers[_WRONG] = step
