"""The clock of all times in a ring.

It counts from 1970 as the host's clock does, but runs as CLOCK_MONOTONIC: where the host's clock is
set, durations stay what they were.
"""

from __future__ import annotations

import time

_monotonic_ns = time.monotonic_ns
_SAMPLES = 5


def difference_ns() -> int:
    """Return the host's clock less CLOCK_MONOTONIC, in ns.

    Of five samples, that counts whose two readings of CLOCK_MONOTONIC lie closest together: between
    the readings of another, the kernel may have run another process.
    """
    best = 1 << 62, 0
    for _ in range(_SAMPLES):
        before = _monotonic_ns()
        host = time.time_ns()
        after = _monotonic_ns()
        best = min(best, (after - before, host - (before + after) // 2))
    return best[1]


CLOCK = difference_ns()
"""Nanoseconds from the begin of CLOCK_MONOTONIC to that of 1970, when this process started."""


def now_ns() -> int:
    """Return the time in ns since 1970."""
    return _monotonic_ns() + CLOCK
