"""Validate values and files from untrusted sources.

A ring or a trace may come from anywhere. Each function returns a value of the requested type and
of bounded size, or a neutral value such as None.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError

MAX_RANKS = 1 << 18
"""More than any job has: a larger rank or world size is treated as an error."""
_LARGEST_COUNT = 1 << 20

_LONGEST_TEXT = 1 << 16
_DEEPEST = 64
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_regular(path: str | os.PathLike[str], *, follow: bool = True, owned: bool = False) -> int:
    """Open a regular file for reading; opening a pipe of that name could block forever.

    Args:
        path: The file.
        follow: Whether it may be a symbolic link.
        owned: Refuse a file that another user owns or can write.

    Returns:
        A file descriptor.

    Raises:
        DamagedFileError: It is not a regular file, or another user can write it.
        OSError: It cannot be opened.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a zero byte in a path that another file names
        raise DamagedFileError(f"{os.fspath(path)!r} cannot be opened: {error}") from None
    try:
        # Check the descriptor, since the path may have been replaced meanwhile.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFileError(f"{os.fspath(path)} is not a regular file")
        if owned and only_writer(found) != os.geteuid():
            raise DamagedFileError(f"{os.fspath(path)} can be written by another user")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_kind(path: Path) -> None:
    """Refuse what is no regular file, and say what it is; it is not opened.

    Raises:
        DamagedFileError: It is a directory, a pipe, a socket, a device or a dangling link.
        OSError: It cannot be examined.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.is_symlink():
            raise
        raise DamagedFileError(f"{path} is no ring: a dangling link") from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise DamagedFileError(f"{path} is no ring: {kind}")


def only_writer(status: os.stat_result) -> int | None:
    """Return the uid of the only user, besides root, who can write a file; None if others can."""
    return None if status.st_mode & _OTHERS_WRITE else status.st_uid


def parse(data: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(data: str | bytes) -> dict[str, Any]:
    """Parse a JSON text that holds an object; return an empty one for anything else."""
    try:
        value = parse(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def json_memory(data: bytes) -> int:
    """Return an upper estimate of the memory for parsing a JSON text, in bytes."""
    containers = 80 * data.count(b"[") + 250 * data.count(b"{")
    return containers + 40 * data.count(b",") + 2 * len(data)


def integer(value: Any) -> int | None:
    """Return a signed or unsigned 64-bit integer, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << 63) <= value < 1 << 64 else None


def number(value: Any, largest: int = _LARGEST_COUNT) -> int:
    """Return a count from 0 to `largest`; 0 for any other value."""
    found = integer(value)
    return found if found is not None and 0 <= found <= largest else 0


def rank_number(value: Any) -> int:
    """Return a global rank; -1 for any other value."""
    found = integer(value)
    return found if found is not None and 0 <= found < MAX_RANKS else -1


def integers(value: Any, longest: int = _LONGEST_TEXT) -> tuple[int, ...] | None:
    """Return a list of 64-bit integers; None if it is too long or has any other element."""
    if not isinstance(value, list | tuple) or len(value) > longest:
        return None
    if set(map(type, value)) <= {int} and (not value or min(value) >= -(1 << 63)):
        return tuple(value) if not value or max(value) < 1 << 64 else None
    found = tuple(integer(item) for item in value)
    return None if None in found else found  # type: ignore[return-value]


def printable(value: str) -> str:
    """Escape control characters, and characters that cannot be encoded, in a text.

    A CI runner obeys what follows ``##[`` anywhere in a line, so that is escaped, too.
    """
    if not value.isprintable():
        value = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
            for letter in value
        )
    return value.replace("##[", r"#\x23[")


def printable_document(value: Any, depth: int = 0) -> Any:
    """Return a copy of a JSON document with :func:`printable` texts and keys.

    Values that are nested too deeply are None.
    """
    if isinstance(value, str):
        return printable(value)
    if not isinstance(value, Mapping | list):
        return value
    if depth == _DEEPEST:
        return None
    if isinstance(value, list):
        return [printable_document(one, depth + 1) for one in value]
    return {printable(str(key)): printable_document(one, depth + 1) for key, one in value.items()}


def text(value: Any) -> str | None:
    """Return a printable text; a number as its digits; None for any other value.

    A terminal, a spreadsheet or a CI runner could act on other characters. So they are escaped
    here, where texts enter the model, and no output needs to.
    """
    if isinstance(value, float) or integer(value) is not None:
        return str(value)
    return printable(value[:_LONGEST_TEXT]) if isinstance(value, str) else None


def texts(value: Any) -> dict[str, str]:
    """Return the entries of an object whose values are texts."""
    if not isinstance(value, Mapping):
        return {}
    found = {text(key): text(item) for key, item in value.items()}
    return {key: item for key, item in found.items() if key is not None and item is not None}
