"""What a source line of a process calls, and the loop that it is in."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import psutil

from ncclscope.untrusted import printable

_CALL = re.compile(r"(\.?(?:\w+\.){0,3}\w+)\s*\(")
_WITH = re.compile(r"^\s*(?:async\s+)?with\s+([\w.]+)\s*(?:as\b|:|,)")
_SLACK = 1.0
"""Seconds by which the recorded start of a process may be too early."""
_MOST_BYTES = 1 << 22
_LONGEST = 80
_MOST = 8
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Item = TypeVar("_Item")


def called_names(pid: int, path: str, line: int) -> tuple[str, ...]:
    """Return the names that a source line calls, such as ``("work.wait",)``.

    ``with lock:`` counts as a call of ``lock.__enter__``. A file that changed after the process
    started is ignored.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.
    """
    lines = _unchanged(_lines, pid, path)
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    names = [found[1] for found in _CALL.finditer(text)]
    entered = _WITH.match(text)
    if entered:
        names.append(f"{entered[1]}.__enter__")
    return tuple(printable(name[:_LONGEST]) for name in names[:_MOST])


def loop_around(pid: int, path: str, line: int) -> tuple[int, ...]:
    """Return the first and the last line of the outermost loop around a line, in its function.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.

    Returns:
        Nothing where the line is in no loop, or the file is not known.
    """
    inside = [one for one in _unchanged(_blocks, pid, path) if one[0] <= line <= one[1]]
    function = max((first for first, _, is_loop in inside if not is_loop), default=0)
    loops = [(first, last) for first, last, is_loop in inside if is_loop and first >= function]
    return min(loops, default=())


def _unchanged(
    read: Callable[[str, int, int], tuple[_Item, ...]], pid: int, path: str
) -> tuple[_Item, ...]:
    """Return what is read from a source file that did not change after the process started."""
    if not path.startswith("/"):
        return ()
    place = f"/proc/{pid}/root{path}"
    try:
        about = os.stat(place)
        unchanged = about.st_mtime <= psutil.Process(pid).create_time() + _SLACK
        if not (unchanged and stat.S_ISREG(about.st_mode) and about.st_size <= _MOST_BYTES):
            return ()
        return read(place, about.st_mtime_ns, about.st_ino)
    except (OSError, psutil.Error):
        return ()


@lru_cache(maxsize=64)
def _blocks(path: str, modified: int, inode: int) -> tuple[tuple[int, int, bool], ...]:
    """Return first line, last line and whether it is a loop, of each function and loop of a file.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        tree = ast.parse("\n".join(_lines(path, modified, inode)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, isinstance(node, _LOOPS))
        for node in ast.walk(tree)
        if isinstance(node, (*_LOOPS, *_FUNCTIONS))
    )


@lru_cache(maxsize=64)
def _lines(path: str, modified: int, inode: int) -> tuple[str, ...]:
    """Return the lines of a file, cached until its time of change or its inode differs.

    Raises:
        OSError: The file cannot be read.
    """
    return tuple(Path(path).read_text(encoding="utf-8", errors="replace").splitlines())
