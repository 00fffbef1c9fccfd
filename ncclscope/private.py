"""Write files with records, readable by their user only.

Records name hosts, programs and source files. Umasks are usually too open for that, so new files
get mode 0600 and new directories 0700. Existing files and directories keep their mode.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from ncclscope.untrusted import open_regular

PACKED_SUFFIX = ".gz"
_SLICE = 1 << 20
_LEVEL = 1
"""gzip level: the CPUs belong to the job, and zeros shrink as well at level 1."""


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700; existing ones keep theirs.

    Raises:
        OSError: It cannot be created, or its name is taken by another kind of file.
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


def private_home(base: Path) -> Path | None:
    """Return this user's directory in one that all can write to, created where it is missing.

    Args:
        base: A directory such as ``/tmp``.

    Returns:
        None if it cannot be created, or if another user has made it.
    """
    home = base / f"ncclscope-{os.getuid()}"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
        if not home.is_symlink() and home.lstat().st_uid == os.getuid():
            return home
    return None


def open_private(file: Path) -> BinaryIO:
    """Open a file for writing, truncated; a new one gets mode 0600.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return open(os.open(file, flags, 0o600), "wb")


def write_private(file: Path, data: str | bytes) -> None:
    """Write a whole file, encoding a text as UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    with open_private(file) as opened:
        opened.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)


def copy_private(source: Path, target: Path) -> None:
    """Copy a file's contents, without its mode.

    Raises:
        DamagedFileError: The source is not a regular file.
        OSError: The source is a link or cannot be read, or the target cannot be written.
    """
    # Other users may write to the source's directory: a link could lead to a private file.
    with open(open_regular(source, follow=False), "rb") as given, open_private(target) as copy:
        shutil.copyfileobj(given, copy, _SLICE)


def pack_private(source: Path, target: Path) -> None:
    """Copy a file's contents compressed, which shrinks the holes of a ring to nothing.

    Raises:
        DamagedFileError: The source is not a regular file.
        OSError: The source is a link or cannot be read, or the target cannot be written.
    """
    with (
        open(open_regular(source, follow=False), "rb") as given,
        open_private(target) as copy,
        gzip.GzipFile("", "wb", _LEVEL, copy, mtime=0) as packed,
    ):
        shutil.copyfileobj(given, packed, _SLICE)


def private_mode(file: Path) -> int:
    """Return the mode for a file that replaces the one of this name: its mode, else 0600."""
    try:
        return file.stat().st_mode & 0o777
    except OSError:
        return 0o600


def replace_file(file: Path, data: str | bytes, mode: int, *, synced: bool = False) -> None:
    """Write a file under a temporary name and rename it, so that nobody reads a part of it.

    Args:
        file: The file.
        data: Its contents; a text is encoded as UTF-8.
        mode: Its permissions, such as 0o600.
        synced: Whether to wait until it is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data.encode("utf-8") if isinstance(data, str) else data)
            os.fchmod(opened.fileno(), mode)
            opened.flush()
            if synced:
                os.fsync(opened.fileno())
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
