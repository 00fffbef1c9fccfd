"""Identify processes through /proc."""

from __future__ import annotations

import os
import platform
import struct
import time

POLL_CALLS = {"x86_64": (7, 23, 232, 270, 271, 281, 441), "aarch64": (22, 72, 73, 441)}
"""Numbers of poll, select and epoll_wait with their variants, by machine."""
_MOST_ANCESTORS = 32
_SLEEP_CALL = {"x86_64": b"230", "aarch64": b"115"}.get(platform.machine(), b"")
_MONOTONIC, _ABSOLUTE = 1, 1
"""CLOCK_MONOTONIC and TIMER_ABSTIME, arguments of clock_nanosleep."""
_TIME = struct.Struct("=qq")
_ACCEPT_CALLS = {"x86_64": (43, 288), "aarch64": (202, 242)}
_INPUT_CALLS = {
    str(number).encode()
    for calls in (POLL_CALLS, _ACCEPT_CALLS)
    for number in calls.get(platform.machine(), ())
}


def start_ticks(pid: int) -> int:
    """Return a process's start time in clock ticks since boot; 0 if it does not exist.

    With pid and boot id it identifies a process uniquely; a pid alone is reused. A zombie counts
    as ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()
        return 0 if state in (b"Z", b"X") else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return 0


def ancestors(pid: int) -> list[int]:
    """Return the pids of a process's ancestors, its parent first, without init."""
    found: list[int] = []
    while len(found) < _MOST_ANCESTORS:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if pid <= 1 or pid in found:
            break
        found.append(pid)
    return found


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def waits_for_input(pid: int) -> bool:
    """Return whether a process's main thread waits for a connection or any of several files.

    Servers without requests wait like that. False where the kernel does not show it.
    """
    try:
        with open(f"/proc/{pid}/syscall", "rb") as file:
            return file.read().partition(b" ")[0] in _INPUT_CALLS
    except OSError:
        return False


def sleeps_until(pid: int) -> int:
    """Return when the timed sleep of a process's main thread ends, in ns by CLOCK_MONOTONIC.

    No other process ends or prolongs such a sleep, as of Python's ``time.sleep``. Where only its
    length is known, this is the latest time at which it can end.

    Args:
        pid: Its pid.

    Returns:
        0 where it does not sleep, or the kernel does not show it.
    """
    path = f"/proc/{pid}/task/{pid}/syscall"
    try:
        with open(path, "rb") as file:
            before = file.read()
        number, *fields = before.split()
        if number != _SLEEP_CALL or _has_stuck_thread(pid):
            return 0
        clock, flags, place = (int(text, 16) for text in fields[:3])
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(place)
            seconds, nanoseconds = _TIME.unpack(memory.read(_TIME.size))
        with open(path, "rb") as file:
            if file.read() != before:  # it has woken meanwhile
                return 0
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return 0  # a running thread shows "running", and a thread may end meanwhile
    length = int(seconds * 1_000_000_000 + nanoseconds)
    if not flags & _ABSOLUTE:
        return time.monotonic_ns() + length
    return length if clock == _MONOTONIC else 0


def _has_stuck_thread(pid: int) -> bool:
    """Return whether a thread hangs in the kernel: with the memory map locked, reads would, too."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] == b"D":
                return True
    return False


def switches(pid: int) -> int:
    """Return the number of voluntary context switches of a process's main thread; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/task/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"voluntary_ctxt_switches:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def processor_wait(pid: int) -> float | None:
    """Return for how many seconds a process's main thread was ready and had no processor.

    Args:
        pid: Its pid.

    Returns:
        None if there is no such process, or the kernel does not count it.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
            _, waited, _ = file.read().split()
        return int(waited) / 1e9
    except (OSError, ValueError):
        return None


def pid_namespace() -> int:
    """Return the inode of this process's pid namespace; 0 if unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Return the kernel's boot id, a new one at each boot; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
