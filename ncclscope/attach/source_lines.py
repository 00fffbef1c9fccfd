"""Names of the functions that a source line of a process calls."""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from pathlib import Path

import psutil

from ncclscope.untrusted import printable

_CALL = re.compile(r"(\.?(?:\w+\.){0,3}\w+)\s*\(")
_WITH = re.compile(r"^\s*(?:async\s+)?with\s+([\w.]+)\s*(?:as\b|:|,)")
_SLACK = 1.0
"""Seconds by which the recorded start of a process may be too early."""
_MOST_BYTES = 1 << 22
_LONGEST = 80
_MOST = 8


def called_names(pid: int, path: str, line: int) -> tuple[str, ...]:
    """Return the names that a source line calls, such as ``("work.wait",)``.

    ``with lock:`` counts as a call of ``lock.__enter__``. A file that changed after the process
    started is ignored.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.
    """
    if not path.startswith("/"):
        return ()
    place = f"/proc/{pid}/root{path}"
    try:
        about = os.stat(place)
        unchanged = about.st_mtime <= psutil.Process(pid).create_time() + _SLACK
        if not (unchanged and stat.S_ISREG(about.st_mode) and about.st_size <= _MOST_BYTES):
            return ()
        lines = _lines(place, about.st_mtime_ns, about.st_ino)
    except (OSError, psutil.Error):
        return ()
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    names = [found[1] for found in _CALL.finditer(text)]
    entered = _WITH.match(text)
    if entered:
        names.append(f"{entered[1]}.__enter__")
    return tuple(printable(name[:_LONGEST]) for name in names[:_MOST])


@lru_cache(maxsize=64)
def _lines(path: str, modified: int, inode: int) -> tuple[str, ...]:
    """Return the lines of a file, cached until its time of change or its inode differs.

    Raises:
        OSError: The file cannot be read.
    """
    return tuple(Path(path).read_text(encoding="utf-8", errors="replace").splitlines())
