"""Values and files that somebody else wrote, taken with care.

A ring or a trace may come from anywhere. What is taken from it here has the type that was
asked for and a size that can be reckoned with, or it is None.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from ncclscope.errors import DamagedFileError

__all__ = [
    "MAX_RANKS",
    "integer",
    "integers",
    "json_memory",
    "number",
    "only_writer",
    "open_regular",
    "parse",
    "printable",
    "text",
    "texts",
]

MAX_RANKS = 1 << 18
"""Larger than any job: a rank or a world size beyond it is a mistake, and is not counted up to."""
_LARGEST_COUNT = 1 << 20

_LONGEST_TEXT = 1 << 16
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_regular(path: str | os.PathLike[str], *, follow: bool = True, owned: bool = False) -> int:
    """Open a file for reading, if it is one: a pipe of that name would wait for ever.

    Args:
        path: The file.
        follow: Whether it may be a symbolic link.
        owned: Refuse a file of another user, and one that others may write.

    Returns:
        A descriptor.

    Raises:
        DamagedFileError: It is something else, such as a directory, a pipe or a device, or
            not this user's own.
        OSError: It cannot be opened.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        # Of the descriptor: what the path names may have been exchanged since.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFileError(f"{os.fspath(path)} is no regular file")
        if owned and only_writer(found) != os.geteuid():
            raise DamagedFileError(f"{os.fspath(path)} can be written by another user")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def only_writer(status: os.stat_result) -> int | None:
    """Return the user who alone can write a file, root aside; None where others can, too."""
    return None if status.st_mode & _OTHERS_WRITE else status.st_uid


def parse(data: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none, or it is nested too deeply to be one of ours.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_memory(data: bytes) -> int:
    """Return about how many bytes the value of a JSON text takes at most, and its parsing."""
    containers = 80 * data.count(b"[") + 250 * data.count(b"{")
    return containers + 40 * data.count(b",") + 2 * len(data)


def integer(value: Any) -> int | None:
    """Return a 64-bit integer, signed or not."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << 63) <= value < 1 << 64 else None


def number(value: Any, largest: int = _LARGEST_COUNT) -> int:
    """Return an integer that counts or numbers something; 0 when it is not plausible."""
    found = integer(value)
    return found if found is not None and 0 <= found <= largest else 0


def integers(value: Any, longest: int = _LONGEST_TEXT) -> tuple[int, ...] | None:
    """Return a list of 64-bit integers; None when anything in it is something else."""
    if not isinstance(value, list | tuple) or len(value) > longest:
        return None
    if set(map(type, value)) <= {int} and (not value or min(value) >= -(1 << 63)):
        return tuple(value) if not value or max(value) < 1 << 64 else None
    found = tuple(integer(item) for item in value)
    return None if None in found else found  # type: ignore[return-value]


def printable(value: str) -> str:
    """Return a text without anything that a terminal would act on, or no encoding takes."""
    if value.isascii() and value.isprintable():
        return value
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in value
    )


def text(value: Any) -> str | None:
    """Return a text that can be printed anywhere; of a number its digits."""
    if isinstance(value, float) or integer(value) is not None:
        return str(value)
    if not isinstance(value, str):
        return None
    found = value[:_LONGEST_TEXT]
    # JSON can spell half a surrogate pair, which no terminal and no digest takes.
    return found if found.isascii() else found.encode("utf-8", "replace").decode("utf-8")


def texts(value: Any) -> dict[str, str]:
    """Return the entries of an object whose values are texts."""
    if not isinstance(value, Mapping):
        return {}
    found = {text(key): text(item) for key, item in value.items()}
    return {key: item for key, item in found.items() if key is not None and item is not None}
