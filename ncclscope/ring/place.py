"""Create the file of a ring where there is room for it.

A store to a mapped file on a full file system raises SIGBUS, so the space is reserved at
creation. A ring takes only a small part of the free space, since the job may need the rest.
Other users may write to /dev/shm and /tmp, so links and files that they put there are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclscope.errors import RingError
from ncclscope.private import make_private
from ncclscope.ring import layout
from ncclscope.untrusted import printable

SHARE = 2
"""What a ring reserves at first may take at most 1/SHARE of the free space."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMES_TRIED = 16


@dataclass(frozen=True)
class RingPlace:
    """A file created for a ring.

    Attributes:
        path: Path of the file.
        descriptor: Open file descriptor; the caller closes it.
        reason: Why it is not in the requested directory; empty if it is.
    """

    path: Path
    descriptor: int
    reason: str = ""


def make_file(directory: Path, size: int, parts: Sequence[tuple[int, int]]) -> RingPlace:
    """Create a sparse file of which some parts are reserved, in the directory or else on disk.

    Args:
        directory: Requested directory; created with mode 0700 if absent.
        size: Size in bytes.
        parts: Offset and size of each reserved part.

    Raises:
        RingError: There is no room in either place.
    """
    name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}"
    try:
        path, descriptor = _make_in(directory, name, size, parts)
        return RingPlace(path, descriptor)
    except OSError as error:
        first = error
    fallback = fallback_of(directory)
    try:
        _check_own(fallback.parent)
        path, descriptor = _make_in(fallback, name, size, parts)
    except OSError as second:
        raise RingError(
            f"no ring can be created in {directory} ({_reason(first)}) "
            f"nor in {fallback} ({_reason(second)})",
            f"set NCCLSCOPE_DIR to a directory with {_needed(parts) >> 10} KB free",
        ) from second
    return RingPlace(path, descriptor, _reason(first))


def fallback_of(directory: Path, owner: int | None = None) -> Path:
    """Return where the rings of a directory without room go.

    Args:
        directory: Requested directory.
        owner: User id of the job's user (default: this user).
    """
    uid = os.getuid() if owner is None else owner
    name = os.path.basename(os.path.abspath(directory))
    return Path(tempfile.gettempdir(), f"ncclscope-{uid}", name)


def _rings_elsewhere(directory: Path) -> Path | None:
    """Return the directory that takes rings for which this one has no room, if it holds some."""
    fallback = fallback_of(directory)
    return fallback if any(fallback.glob(f"*{layout.SUFFIX}")) else None


def moved_text(directories: Iterable[Path]) -> str:
    """Return where rings are for which directories without rings may have had no room."""
    found = [str(place) for place in map(_rings_elsewhere, directories) if place is not None]
    listed = printable(" ".join(found))
    return f"rings for which a directory of this name had no room are in {listed}" if found else ""


def leave_pointer(directory: Path, path: Path) -> bool:
    """Write a file in the requested directory that names the ring's path; False on failure."""
    # A full file system can often still take one short file.
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


def _needed(parts: Sequence[tuple[int, int]]) -> int:
    return SHARE * sum(size for _, size in parts)


def _make_in(
    directory: Path, name: str, size: int, parts: Sequence[tuple[int, int]]
) -> tuple[Path, int]:
    with contextlib.suppress(
        FileExistsError
    ):  # whatever exists there, O_NOFOLLOW below refuses a link
        make_private(directory)
    folder = os.open(directory, _FOLDER)
    try:
        system = os.fstatvfs(folder)
        if system.f_bavail * system.f_frsize < _needed(parts):
            raise OSError(errno.ENOSPC, "not enough free space")
        full_name, descriptor = _make_new(folder, name)
        try:
            os.ftruncate(descriptor, size)
            for offset, length in parts:
                os.posix_fallocate(descriptor, offset, length)
        except OSError:
            os.close(descriptor)
            os.unlink(full_name, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return directory / full_name, descriptor


def _make_new(folder: int, name: str) -> tuple[str, int]:
    """Create a new file; two tracers may use the same name in the same millisecond."""
    for number in range(_NAMES_TRIED):
        full_name = f"{name}{f'-{number}' if number else ''}{layout.SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return full_name, os.open(full_name, _NEW_FILE, 0o600, dir_fd=folder)
    raise FileExistsError(errno.EEXIST, "all names for the file are taken")


def _check_own(directory: Path) -> None:
    """Refuse a directory that another user created to receive this user's files."""
    with contextlib.suppress(
        FileExistsError
    ):  # whatever exists there, O_NOFOLLOW below refuses a link
        make_private(directory)
    folder = os.open(directory, _FOLDER)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{directory} belongs to another user")
    finally:
        os.close(folder)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is a symbolic link or no directory"
    return (error.strerror or str(error)).lower()
