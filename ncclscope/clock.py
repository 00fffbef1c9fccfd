"""The clock of all times in a ring.

It counts from 1970 as the host's clock does, but runs as CLOCK_MONOTONIC: where the host's clock is
set, durations stay what they were.
"""

from __future__ import annotations

import time

CLOCK = time.time_ns() - time.monotonic_ns()
"""Nanoseconds from the begin of CLOCK_MONOTONIC to that of 1970, when this process started."""
_monotonic_ns = time.monotonic_ns


def now_ns() -> int:
    """Return the time in ns since 1970."""
    return _monotonic_ns() + CLOCK
