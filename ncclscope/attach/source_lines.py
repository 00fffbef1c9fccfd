"""What a source line of a process calls, and the loop that it is in."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Callable, Sequence
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
_MOST_ABOVE = 64
_MOST_LINES = 1 << 14
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


def called_before(pid: int, path: str, line: int) -> tuple[str, ...]:
    """Return the names that the outermost loop around a line calls in the lines above it.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.
    """
    first, _ = loop_around(pid, path, line) or (line, line)
    above = [
        node
        for node in _nodes(pid, path, line)
        if isinstance(node, ast.Call) and first < node.lineno and (node.end_lineno or 0) < line
    ]
    return tuple(dict.fromkeys(printable(ast.unparse(one.func)[:_LONGEST]) for one in above))[
        :_MOST_ABOVE
    ]


def loop_around(pid: int, path: str, line: int) -> tuple[int, ...]:
    """Return the first and the last line of the outermost loop around a line, in its function.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.

    Returns:
        Nothing where the line is in no loop, or the file is not known.
    """
    inside = [
        node for node in _nodes(pid, path, line) if isinstance(node, _LOOPS) and _has(node, line)
    ]
    return min(((node.lineno, node.end_lineno or node.lineno) for node in inside), default=())


def makers(pid: int, path: str, line: int) -> tuple[str, ...]:
    """Return the names of the functions whose results a source line waits for.

    For ``work.wait()`` these are all that are called in an assignment to ``work``, for the variable
    of a loop those that fill the list, in the same function.

    Args:
        pid: The process, in whose root directory the path is looked up.
        path: Absolute path of the source file.
        line: Line number, from 1.

    Returns:
        Names such as ``dist.all_reduce``, those of their arguments as well.
    """
    nodes = _nodes(pid, path, line)
    values = [
        node.func.value
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "wait"
        and _has(node, line)
    ]
    found: dict[str, None] = {}
    variables: set[str] = set()
    while values:
        for node in ast.walk(values.pop()):
            if isinstance(node, ast.Call):
                found[ast.unparse(node.func)[:_LONGEST]] = None
            elif isinstance(node, ast.Name) and node.id not in variables:
                variables.add(node.id)
                values += _values_of(node.id, nodes)
    return tuple(printable(name) for name in found)[:_MOST]


def _values_of(name: str, nodes: Sequence[ast.AST]) -> list[ast.expr]:
    """Return what is assigned to a variable, or appended to it."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Assign | ast.For | ast.comprehension):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                found.append(node.value if isinstance(node, ast.Assign) else node.iter)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append":
            found += node.args
    return found


def _has(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _nodes(pid: int, path: str, line: int) -> Sequence[ast.AST]:
    """Return the syntax tree of the innermost function around a line, without inner functions."""
    modules = _unchanged(_trees, pid, path)
    functions = [
        node
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, _FUNCTIONS) and _has(node, line)
    ]
    left: list[ast.AST] = [*functions[-1:]] or [*modules]
    found = []
    while left:
        inner = [one for one in ast.iter_child_nodes(left.pop()) if not isinstance(one, _FUNCTIONS)]
        found += inner
        left += inner
    return found


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


@lru_cache(maxsize=16)
def _trees(path: str, modified: int, inode: int) -> tuple[ast.Module, ...]:
    """Return the syntax tree of a file; nothing where it is no Python, or is too large.

    Raises:
        OSError: The file cannot be read.
    """
    lines = _lines(path, modified, inode)
    if len(lines) > _MOST_LINES:
        return ()
    try:
        return (ast.parse("\n".join(lines)),)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


@lru_cache(maxsize=64)
def _lines(path: str, modified: int, inode: int) -> tuple[str, ...]:
    """Return the lines of a file, cached until its time of change or its inode differs.

    Raises:
        OSError: The file cannot be read.
    """
    return tuple(Path(path).read_text(encoding="utf-8", errors="replace").splitlines())
