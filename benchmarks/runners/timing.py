"""Times of things that take less than a microsecond, on a machine that others use as well."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Loop", "Rounds", "Sample", "in_turns"]

Loop = Callable[[int], None]
"""Does something a given number of times."""


@dataclass(frozen=True)
class Sample:
    """Nanoseconds of one repetition, over all rounds.

    Attributes:
        least: In the round that was disturbed the least.
        median: In the round in the middle.
    """

    least: float
    median: float


@dataclass(frozen=True)
class Rounds:
    """Nanoseconds of one repetition, in each round."""

    taken: Sequence[float]

    def sample(self) -> Sample:
        """Return the least and the median."""
        return Sample(min(self.taken), statistics.median(self.taken))

    def over(self, base: Rounds) -> Sample:
        """Return the additional time over another measurement that was made in turns."""
        pairs = zip(self.taken, base.taken, strict=True)
        median = statistics.median(mine - other for mine, other in pairs)
        return Sample(min(self.taken) - min(base.taken), median)


def in_turns(loops: Mapping[str, Loop], *, rounds: int, count: int) -> dict[str, Rounds]:
    """Run each loop once a round, so that a busy moment hits them all.

    Processor time of this thread is what counts: what others run meanwhile does not.

    Args:
        loops: By name.
        rounds: How often each is run.
        count: Repetitions in a round.
    """
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop(count)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, loop in loops.items():
                start = time.thread_time_ns()
                loop(count)
                taken[name].append((time.thread_time_ns() - start) / count)
    finally:
        gc.enable()
    return {name: Rounds(rounds) for name, rounds in taken.items()}
