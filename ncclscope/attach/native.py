"""C frames and threads that Python never saw, such as NCCL's own, read by pystack.

pystack is an optional extra, ``ncclscope[native]``. It is run as a program of its own, since a
fault while it reads the memory of another process must not end this one. ``--no-block`` keeps
it from stopping the process, and then it shows Python frames only; so the process is stopped
for some tenths of a second, which is why it is read only when asked for.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from dataclasses import replace

from ncclscope.model.snapshot import Stacks, Thread
from ncclscope.untrusted import printable

__all__ = ["is_installed", "merge_native", "parse_pystack", "read_native"]

_TIME_LIMIT = 8.0
_MOST_BYTES = 1 << 24
_THREAD = re.compile(r"Traceback for thread (\d+)(?: \((.*?)\))? ")
_LIBRARY = re.compile(r" \((?:inlined\) \()?/?(?:[^()]*/)?([^/()]+)\)$")
"""Of the path of a library, the name is enough."""
_FRAME = re.compile(r"\s+\((C|Python)\) File \"(.*)\", line (\d+), in (.*)")


def is_installed() -> bool:
    """Whether pystack is there."""
    return importlib.util.find_spec("pystack") is not None


def read_native(pid: int) -> tuple[Thread, ...] | str:
    """Returns all threads of a process with their C frames, or why there are none."""
    command = [sys.executable, "-m", "pystack", "remote", "--native-all", str(pid)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL
        )
        try:
            status = process.wait(_TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"pystack did not come back within {_TIME_LIMIT:g} s"
        said.seek(0)
        text = said.read(_MOST_BYTES).decode("utf-8", "replace")
    return parse_pystack(text) if status == 0 else f"pystack ended with status {status}"


def parse_pystack(text: str) -> tuple[Thread, ...]:
    """Reads what ``pystack remote --native-all`` prints."""
    threads: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            threads.append((int(thread[1]), printable(thread[2] or ""), []))
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            threads[-1][2].append(printable(_LIBRARY.sub(r" [\1]", frame[4].strip())))
    return tuple(Thread(name, tid, native=tuple(frames)) for tid, name, frames in threads)


def merge_native(stacks: Stacks, native: tuple[Thread, ...]) -> Stacks:
    """Adds C frames to the threads that are known, and the threads that are not."""
    by_tid = {thread.tid: thread for thread in native}
    known = tuple(
        replace(thread, native=by_tid.pop(thread.tid).native) if thread.tid in by_tid else thread
        for thread in stacks.threads
    )
    return replace(stacks, threads=known + tuple(by_tid.values()))
