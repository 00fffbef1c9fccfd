"""The system call that a thread is blocked in, from /proc/PID/syscall.

The kernel shows the call's number and arguments to processes that may read the thread's
memory. Numbers differ between architectures.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ncclscope.procfs import POLL_CALLS

_X86 = {
    **dict.fromkeys((0, 1, 17, 18, 19, 20), "read"),
    **dict.fromkeys((2, 257), "open"),
    **dict.fromkeys(POLL_CALLS["x86_64"], "poll"),
    **dict.fromkeys((35, 230), "sleep"),
    **dict.fromkeys((42, 43, 44, 45, 46, 47, 288), "socket"),
    **dict.fromkeys((61, 247), "child"),
    **dict.fromkeys((202, 449), "futex"),
    72: "fcntl",
    73: "lock",
}
_ARM = {
    **dict.fromkeys((63, 64, 65, 66, 67, 68), "read"),
    56: "open",
    **dict.fromkeys(POLL_CALLS["aarch64"], "poll"),
    **dict.fromkeys((101, 115), "sleep"),
    **dict.fromkeys((202, 203, 206, 207, 211, 212, 242), "socket"),
    **dict.fromkeys((95, 260), "child"),
    **dict.fromkeys((98, 449), "futex"),
    25: "fcntl",
    32: "lock",
}
_CALLS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})
_CONNECTED = {
    "x86_64": frozenset({0, 1, 44, 45, 46, 47}),
    "aarch64": frozenset({63, 64, 206, 207, 211, 212}),
}.get(platform.machine(), frozenset())
"""Calls that send or receive: their socket has another end."""
_SETLKW = frozenset({7, 38})
"""Commands of fcntl that wait for a lock, of the process or of an open file."""
_OPENS_FIFO = ("wait_for_partner", "fifo_open")


def blocked_in(home: Path, wchan: str) -> str:
    """Return what the main thread waits for in the kernel.

    Args:
        home: ``/proc/PID``.
        wchan: Kernel function that it sleeps in; empty if unknown.

    Returns:
        ``sleep``, ``futex``, ``lock``, ``socket``, ``pipe``, ``fifo``, ``file``, ``child`` or
        ``poll``; empty if it runs, waits for something else, or may not be read.
    """
    number, arguments = _call(home)
    what = _CALLS.get(number, "")
    if what == "fcntl":
        return "lock" if arguments[1] in _SETLKW else ""
    if what == "open":
        return "fifo" if wchan in _OPENS_FIFO else "file"
    if what == "read":
        return _kind(home, arguments[0], wchan)
    return what


def blocked_socket(home: Path) -> str:
    """Return the socket on which the main thread waits to send or to receive.

    Args:
        home: ``/proc/PID``.

    Returns:
        Its inode, as the kernel lists it; empty for none.
    """
    number, arguments = _call(home)
    target = _target(home, arguments[0]) if number in _CONNECTED else ""
    return target.removeprefix("socket:").strip("[]") if target.startswith("socket:") else ""


def _call(home: Path) -> tuple[int, list[int]]:
    """Return the number of the system call and its arguments; -1 where the thread runs."""
    try:
        fields = (home / "syscall").read_text(encoding="ascii", errors="replace").split()
        number, arguments = int(fields[0]), [int(text, 16) for text in fields[1:7]]
    except (OSError, ValueError, IndexError):  # a running thread shows "running"
        return -1, [-1]
    return number, arguments or [-1]


def _target(home: Path, descriptor: int) -> str:
    """Return what a descriptor is, without accessing its file system, which may hang."""
    try:
        return os.readlink(home / "fd" / str(descriptor))
    except OSError:
        return ""


def _kind(home: Path, descriptor: int, wchan: str) -> str:
    """Return the kind of a file descriptor."""
    target = _target(home, descriptor)
    if target.startswith("socket:"):
        return "socket"
    return "pipe" if target.startswith("pipe:") or "pipe" in wchan else "file"
