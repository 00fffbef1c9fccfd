"""CPU time of the processes that this one has started, such as compilers."""

from __future__ import annotations

import os
from pathlib import Path

_TASKS = Path("/proc/self/task")
_MOST = 64
"""Threads, and processes that they started, that are read."""
_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_UTIME = 11
"""Place of the first of four times in ``/proc/PID/stat``, behind the name: of the process in user
and kernel mode, and of those that it started and that have ended."""


def started_time_ns() -> int:
    """Return the CPU time that started processes have used, in nanoseconds.

    It covers those that have ended, and those that run. Of processes that these started, it covers
    the ended ones. 0 where the kernel does not list the children of a thread.
    """
    ended = os.times()
    total = int((ended.children_user + ended.children_system) * 1e9)
    for pid in _started():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[_UTIME : _UTIME + 4])) * _NS
        except (OSError, ValueError):  # it has just ended
            continue
    return total


def _started() -> list[str]:
    found: list[str] = []
    try:
        threads = [one.name for one in os.scandir(_TASKS)]
    except OSError:
        return found
    for one in threads[:_MOST]:
        try:
            found += (_TASKS / one / "children").read_text().split()
        except OSError:  # the thread has just ended, or the kernel has no such file
            continue
    return found[:_MOST]
