"""Read the kernel's log for processes that it killed for memory, and for errors of NVIDIA GPUs.

``/dev/kmsg`` gives one message a read and ends with EAGAIN. A file with the output of ``dmesg``
is read alike, for containers, which often may not read the log. Any process may write into the
log, so all text in it is bounded and made printable.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ncclscope.errors import os_reason
from ncclscope.model import Run
from ncclscope.model.snapshot import KernelEvent, Source
from ncclscope.procfs import pid_namespace
from ncclscope.untrusted import printable

KMSG = Path("/dev/kmsg")
NAME = "kernel log"

_MOST_BYTES = 1 << 24
_MOST_READS = 1 << 16
_MOST_EVENTS = 64
_LONGEST = 200
_MOST_PID = 1 << 22
_INITIAL_NAMESPACE = 4026531836
_HEAD = re.compile(r"^\d+,\d+,(\d{1,18}),[^;]*;(.*)$|^(?:<\d+>)?\[ *(\d{1,9})\.(\d{6})\] ?(.*)$")
_KILLED = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory)[^:]*: Kill(?:ed)? process (\d{1,9}),? "
    r"\(([^)]{1,64})\)"
)
_RESIDENT = re.compile(r"anon-rss:(\d{1,15})kB")
_XID = re.compile(r"NVRM: Xid \(([\w:.]{1,40})\): (\d{1,4})(?:, (.*))?")
_XID_PID = re.compile(r"\bpid='?(\d{1,9})")


def read_kernel_log(path: Path = KMSG) -> tuple[tuple[KernelEvent, ...], Source]:
    """Return what the kernel logged about memory and GPUs, and the data source.

    Args:
        path: The log, or a file with the output of ``dmesg``.
    """
    try:
        data = _read(path)
    except OSError as error:
        how = f"run as root, or save `dmesg` to a file and pass --kernel-log FILE ({path})"
        return (), Source(NAME, False, os_reason(error), how)
    events = parse_log(data, time.time_ns() - time.monotonic_ns())
    if path == KMSG and pid_namespace() != _INITIAL_NAMESPACE:
        # The kernel counts processes by the host's numbers, this container by its own.
        events = tuple(replace(event, pid=0) for event in events)
    killed = sum(event.kind == "oom" for event in events)
    state = f"{killed} killed for memory, {len(events) - killed} errors of GPUs"
    return events, Source(NAME, True, state)


def with_kernel_log(run: Run, path: Path = KMSG) -> Run:
    """Return a run with this host's kernel log, if a process of it has ended here since the boot.

    Args:
        run: The run of rings.
        path: The log, or a file with the output of ``dmesg``.
    """
    if run.kernel or all(rank.alive is not False for rank in run.ranks):
        return run
    return replace(run, kernel=read_kernel_log(path)[0])


def parse_log(data: bytes, booted_ns: int) -> tuple[KernelEvent, ...]:
    """Return the newest events of a kernel log, oldest first.

    Args:
        data: Messages of ``/dev/kmsg`` or of ``dmesg``, one a line.
        booted_ns: Time of the kernel's start, nanoseconds since 1970.
    """
    found = [
        event
        for line in data.decode("utf-8", "replace").splitlines()
        if (event := _event(line, booted_ns)) is not None
    ]
    return tuple(found[-_MOST_EVENTS:])


def _event(line: str, booted_ns: int) -> KernelEvent | None:
    host = socket.gethostname()
    head = _HEAD.match(line)
    micros, message = 0, line
    if head is not None:
        micros = int(head[1] or f"{head[3]}{head[4]}")
        message = head[2] if head[1] else head[5]
    when = booted_ns + micros * 1000 if micros else 0
    if (killed := _KILLED.search(message)) is not None:
        resident = _RESIDENT.search(message)
        size = f", {int(resident[1]) / 1e6:.1f} GB resident" if resident else ""
        text = printable(f"{killed[2]}{size}")
        return KernelEvent("oom", when, _pid(killed[1]), text[:_LONGEST], host)
    if (xid := _XID.search(message)) is not None:
        rest = xid[3] or ""
        pid = _XID_PID.search(rest)
        text = printable(f"Xid {xid[2]} on {xid[1]}{f': {rest}' if rest else ''}")
        return KernelEvent("xid", when, _pid(pid[1]) if pid else 0, text[:_LONGEST], host)
    return None


def _pid(text: str) -> int:
    found = int(text)
    return found if found <= _MOST_PID else 0


def _read(path: Path) -> bytes:
    """Return at most 16 MB of a log, without waiting for more.

    Raises:
        OSError: It cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(file).st_mode
        if not (stat.S_ISCHR(mode) or stat.S_ISREG(mode)):
            raise OSError(0, "it is no file")
        return b"".join(_chunks(file))
    finally:
        os.close(file)


def _chunks(file: int) -> Iterator[bytes]:
    size = 0
    for _ in range(_MOST_READS):
        try:
            chunk = os.read(file, 1 << 16)
        except BlockingIOError:
            return
        except BrokenPipeError:  # messages were overwritten meanwhile: go on with the next one
            continue
        size += len(chunk)
        if not chunk or size > _MOST_BYTES:
            return
        yield chunk
