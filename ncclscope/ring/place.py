"""Makes the file of a ring, where there is room for it.

A store into a full file system is a SIGBUS, so the space is reserved when the file is made,
and only a small part of what a file system has left is taken, since the job may need the
rest. Other users may write where rings go, in /dev/shm and /tmp: nothing that they put there
is followed or taken for ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ncclscope.errors import RingError
from ncclscope.private import make_private
from ncclscope.ring import layout

__all__ = ["RingPlace", "make_file"]

SHARE = 8
"""A ring is made only where it takes at most one part in so many of the free space."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMES_TRIED = 16


@dataclass(frozen=True)
class RingPlace:
    """A file that was made for a ring.

    Attributes:
        path: Where it is.
        descriptor: Open, for whoever asked for it to close.
        reason: Why it is not in the directory that was asked for; empty when it is.
    """

    path: Path
    descriptor: int
    reason: str = ""


def make_file(directory: Path, size: int) -> RingPlace:
    """Make a file with its space reserved, in the directory or else on disk.

    Args:
        directory: Where it should be; made with mode 0700 when absent.
        size: In bytes.

    Raises:
        RingError: There is no room in either place.
    """
    name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}"
    try:
        path, descriptor = _make_in(directory, name, size)
        return RingPlace(path, descriptor)
    except OSError as error:
        first = error
    fallback = Path(tempfile.gettempdir(), f"ncclscope-{os.getuid()}", directory.name)
    try:
        _check_own(fallback.parent)
        path, descriptor = _make_in(fallback, name, size)
    except OSError as second:
        raise RingError(
            f"no ring can be made in {directory} ({_reason(first)}) "
            f"nor in {fallback} ({_reason(second)})",
            f"set NCCLSCOPE_DIR to a directory with {size * SHARE >> 20} MB free",
        ) from second
    return RingPlace(path, descriptor, _reason(first))


def leave_pointer(directory: Path, path: Path) -> bool:
    """Note beside where a ring should have been where it is; False when that fails, too."""
    # A directory that is full can often still take one short file.
    try:
        folder = os.open(directory, _FOLDER)
        try:
            name = path.name + layout.MOVED_SUFFIX
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
            with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{path}\n")
        finally:
            os.close(folder)
    except OSError:
        return False
    return True


def _make_in(directory: Path, name: str, size: int) -> tuple[Path, int]:
    with contextlib.suppress(FileExistsError):  # whatever it is, it is not followed below
        make_private(directory)
    folder = os.open(directory, _FOLDER)
    try:
        system = os.fstatvfs(folder)
        if system.f_bavail * system.f_frsize < size * SHARE:
            raise OSError(errno.ENOSPC, "too little space left")
        full_name, descriptor = _make_new(folder, name)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            os.unlink(full_name, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return directory / full_name, descriptor


def _make_new(folder: int, name: str) -> tuple[str, int]:
    """Make a file that was not there; two tracers may want one in the same millisecond."""
    for number in range(_NAMES_TRIED):
        full_name = f"{name}{f'-{number}' if number else ''}{layout.SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return full_name, os.open(full_name, _NEW_FILE, 0o600, dir_fd=folder)
    raise FileExistsError(errno.EEXIST, "files of all names for it exist")


def _check_own(directory: Path) -> None:
    """Refuse a directory that another user made to receive our files."""
    with contextlib.suppress(FileExistsError):  # whatever it is, it is not followed below
        make_private(directory)
    folder = os.open(directory, _FOLDER)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{directory} belongs to somebody else")
    finally:
        os.close(folder)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is a symbolic link or no directory"
    return (error.strerror or str(error)).lower()
