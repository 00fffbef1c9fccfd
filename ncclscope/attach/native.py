"""C frames, and threads without Python frames such as NCCL's, read by pystack.

pystack is an optional extra, ``ncclscope[native]``. It runs in a subprocess, so that a crash
while it reads another process's memory does not end this one. With ``--no-block`` it would
show Python frames only, so it stops the process for some tenths of a second. That is why
C frames are read only on request.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace

from ncclscope.attach.limited import run_limited
from ncclscope.model.snapshot import Stacks, Thread
from ncclscope.untrusted import printable

_TIME_LIMIT = 8.0
_THREAD = re.compile(r"Traceback for thread (\d+)(?: \((.*?)\))? ")
_LIBRARY = re.compile(r" \((?:inlined\) \()?/?(?:[^()]*/)?([^/()]+)\)$")
"""The path of a library at the end of a frame; only its file name is kept."""
_FRAME = re.compile(r"\s+\((C|Python)\) File \"(.*)\", line (\d+), in (.*)")


def is_installed() -> bool:
    """Return whether pystack is installed."""
    return importlib.util.find_spec("pystack") is not None


def read_native(pid: int) -> tuple[Thread, ...] | str:
    """Return all threads of a process with their C frames, or why they could not be read."""
    command = [sys.executable, "-m", "pystack", "remote", "--native-all", str(pid)]
    status, output, _ = run_limited(command, _TIME_LIMIT)
    if status is None:
        return f"pystack did not finish within {_TIME_LIMIT:g} s"
    if status != 0:
        return f"pystack exited with status {status}"
    return parse_pystack(output.decode("utf-8", "replace"))


def parse_pystack(text: str) -> tuple[Thread, ...]:
    """Parse the output of ``pystack remote --native-all``."""
    threads: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            threads.append((int(thread[1][:18]), printable(thread[2] or ""), []))
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            threads[-1][2].append(printable(_LIBRARY.sub(r" [\1]", frame[4].strip())))
    return tuple(Thread(name, tid, native=tuple(frames)) for tid, name, frames in threads)


def merge_native(stacks: Stacks, native: tuple[Thread, ...]) -> Stacks:
    """Add C frames to known threads, and append the threads that py-spy did not show."""
    by_tid = {thread.tid: thread for thread in native}
    known = tuple(
        replace(thread, native=by_tid.pop(thread.tid).native) if thread.tid in by_tid else thread
        for thread in stacks.threads
    )
    return replace(stacks, threads=known + tuple(by_tid.values()))
