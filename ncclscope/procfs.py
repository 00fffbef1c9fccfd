"""Which process a pid is, from /proc."""

from __future__ import annotations

import os

__all__ = ["boot_id", "is_stopped", "pid_namespace", "start_ticks"]


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 when it does not exist.

    Together with the pid and the boot it names one process for ever, where a pid alone is
    given out again. A process that has ended and that nobody has waited for is none any more.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()
        return 0 if state in (b"Z", b"X") else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return 0


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def pid_namespace() -> int:
    """Return which numbering of processes this one's pid belongs to; 0 when not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Return what this machine calls the time since it was started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
