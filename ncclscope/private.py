"""Writes files that hold records: for their user alone.

Records name hosts, programs and source files. A umask is set for source code, not for them, so
what is made here has mode 0600, and directories 0700. What exists already keeps the mode that its
user gave it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from ncclscope.untrusted import open_regular

__all__ = ["copy_private", "make_private", "open_private", "private_mode", "write_private"]

_SLICE = 1 << 20


def make_private(directory: Path) -> None:
    """Make a directory and those above it; leave what exists.

    Raises:
        OSError: It cannot be made, or something else has its name.
    """
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise
    except FileNotFoundError:
        if directory.parent == directory:
            raise
        make_private(directory.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def open_private(file: Path) -> BinaryIO:
    """Open a file to write it anew.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return open(os.open(file, flags, 0o600), "wb")


def write_private(file: Path, data: str | bytes) -> None:
    """Write a whole file, a text in UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    with open_private(file) as opened:
        opened.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)


def copy_private(source: Path, target: Path) -> None:
    """Copy what a file holds, not its mode.

    Raises:
        DamagedFileError: The source is no regular file.
        OSError: One cannot be read, or the other not be written; the source is a link.
    """
    # Others may write where the source is: a link could lead to what only we may read.
    with open(open_regular(source, follow=False), "rb") as given, open_private(target) as copy:
        shutil.copyfileobj(given, copy, _SLICE)


def private_mode(file: Path) -> int:
    """Return the mode for a file that takes the place of what has this name now."""
    try:
        return file.stat().st_mode & 0o777
    except OSError:
        return 0o600
