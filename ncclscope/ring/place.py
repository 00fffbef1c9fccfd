"""Create the file of a ring where there is room for it.

A store to a mapped file on a full file system raises SIGBUS, so space is reserved before it is
written to. The places are tried in a fixed order: the directory that was asked for, /dev/shm, the
directory for temporary files, the working directory. Other users may write to some of these, so
links and files that they put there are refused.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclscope.errors import RingError
from ncclscope.private import make_private
from ncclscope.ring import layout
from ncclscope.untrusted import printable

SHARED_MEMORY = Path("/dev/shm")
SPARE = 2
"""What the processes of a host reserve at first may be at most 1/SPARE of the free space."""
UNTRACED_SUFFIX = ".untraced"
"""Of files that name a process without a ring; see :mod:`ncclscope.ring.tombstone`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMES_TRIED = 16
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_MOST_LOCAL = 1024
_made: set[tuple[int, Path]] = set()
"""Directories that this process has created, each with the pid, which a forked child lacks."""


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


def make_file(
    directory: Path, size: int, parts: Sequence[tuple[int, int]] | None = None
) -> RingPlace:
    """Create a file with reserved space, in the directory or in the first place that has room.

    Args:
        directory: Requested directory; created with mode 0700 if absent.
        size: Size in bytes.
        parts: Offset and size of each part that is reserved; all by default. The rest of the file
            is a hole.

    Raises:
        RingError: There is no room in any place.
    """
    reserved = [(0, size)] if parts is None else parts
    needed = SPARE * _coming() * sum(length for _, length in reserved)
    name = new_name()
    failed: list[tuple[Path, str]] = []
    for place in places(directory):
        try:
            full_name, is_own = name + layout.SUFFIX, place != directory
            path, descriptor = make_in(place, full_name, size, reserved, free=needed, is_own=is_own)
        except OSError as error:
            failed.append((place, _reason(error)))
        else:
            return RingPlace(path, descriptor, _reasons(failed))
    tried = " nor in ".join(f"{place} ({reason})" for place, reason in failed)
    raise RingError(
        f"no ring can be created in {tried}",
        f"set NCCLSCOPE_DIR to a directory with {-(-needed >> 20)} MB free",
    )


def new_name() -> str:
    """Return a name for a file of this process, without a suffix."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}"


def places(directory: Path) -> Iterator[Path]:
    """Yield the directories where a ring may go, the requested one first."""
    yield directory
    yield from fallbacks_of(directory)


def fallbacks_of(directory: Path, owner: int | None = None) -> list[Path]:
    """Return where the rings of a directory without room go, in the order in which they are tried.

    Args:
        directory: Requested directory.
        owner: User id of the job's user (default: this user).
    """
    uid = os.getuid() if owner is None else owner
    requested = os.path.abspath(directory) if directory.is_absolute() or _has_cwd() else None
    name = os.path.basename(requested or os.path.normpath(directory))
    found = (base / f"ncclscope-{uid}" / name for base in bases())
    return [place for place in dict.fromkeys(found) if str(place) != requested]


def bases() -> Iterator[Path]:
    """Yield the directories in which each user has one for rings without a directory."""
    yield SHARED_MEMORY
    if (found := temporary()) is not None:
        yield found
    if _has_cwd():
        yield Path.cwd()


def temporary() -> Path | None:
    """Return the directory for temporary files; None where none can be written to.

    TMPDIR is taken as it is, so that another process finds the same place later.
    """
    if named := os.environ.get("TMPDIR"):
        return Path(named)
    with contextlib.suppress(FileNotFoundError):
        return Path(tempfile.gettempdir())
    return None


def _has_cwd() -> bool:
    try:
        os.getcwd()
    except OSError:  # it has been removed
        return False
    return True


def made_here(directory: Path) -> bool:
    """Return whether this process created a directory, and so is the first to use it."""
    return (os.getpid(), directory) in _made


def _holds_some(place: Path) -> bool:
    return any(any(place.glob(f"*{suffix}")) for suffix in (layout.SUFFIX, UNTRACED_SUFFIX))


def moved_text(directories: Iterable[Path]) -> str:
    """Return where rings are for which directories without rings may have had no room."""
    found = [
        str(place)
        for directory in directories
        for place in fallbacks_of(directory)
        if _holds_some(place)
    ]
    listed = printable(" ".join(found))
    return f"rings for which a directory of this name had no room are in {listed}" if found else ""


def leave_pointer(directory: Path, path: Path) -> bool:
    """Write a file in the requested directory that names the ring's path; False on failure."""
    # A full file system can often still take one short file, or at least its name.
    try:
        make_private(directory)
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


def make_in(
    directory: Path,
    name: str,
    size: int,
    parts: Sequence[tuple[int, int]],
    *,
    free: int = 0,
    is_own: bool = False,
) -> tuple[Path, int]:
    """Create a file in a directory, which is created with mode 0700 if absent.

    Args:
        directory: The directory.
        name: Name of the file; a number is added where it is taken.
        size: Size in bytes.
        parts: Offset and size of each part that is reserved.
        free: Bytes that must be free before.
        is_own: Refuse a directory in one that another user has made for this user.

    Returns:
        Path and open file descriptor.

    Raises:
        OSError: It cannot be created there.
    """
    try:
        return _make_once(directory, name, size, parts, free, is_own)
    except FileNotFoundError:  # another process has just removed the directory, see below
        return _make_once(directory, name, size, parts, free, is_own)


def leave(directory: Path) -> None:
    """Remove a directory that this process has created, if it is empty."""
    if made_here(directory):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
            _made.discard((os.getpid(), directory))


def _make_once(
    directory: Path,
    name: str,
    size: int,
    parts: Sequence[tuple[int, int]],
    free: int,
    is_own: bool,
) -> tuple[Path, int]:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    system = os.statvfs(existing)
    # Some file systems do not say how large they are.
    if system.f_blocks and system.f_bavail * system.f_frsize < free:
        raise OSError(errno.ENOSPC, "not enough free space")
    if is_own:
        _check_own(directory.parent)
    # What exists under that name may be a link, which O_NOFOLLOW refuses.
    with contextlib.suppress(FileExistsError):
        make_private(directory.parent)
        os.mkdir(directory, 0o700)
        _made.add((os.getpid(), directory))
    folder = os.open(directory, _FOLDER)
    try:
        full_name, descriptor = _make_new(folder, name)
        try:
            os.ftruncate(descriptor, size)
            for offset, length in parts:
                os.posix_fallocate(descriptor, offset, length)
            mmap.mmap(descriptor, min(size, mmap.PAGESIZE)).close()  # not all can be mapped
        except (OSError, ValueError):
            os.close(descriptor)
            os.unlink(full_name, dir_fd=folder)
            raise
    except BaseException:
        leave(directory)
        raise
    finally:
        os.close(folder)
    return directory / full_name, descriptor


def _coming() -> int:
    """Return how many processes of the job this host has, each of which makes a ring."""
    for name in _LOCAL_SIZES:
        text = os.environ.get(name, "")
        if text.isdecimal() and len(text) < 9:
            return max(1, min(int(text), _MOST_LOCAL))
    return 1


def _make_new(folder: int, name: str) -> tuple[str, int]:
    """Create a new file; two tracers may use the same name in the same millisecond."""
    stem, suffix = os.path.splitext(name)
    for number in range(_NAMES_TRIED):
        full_name = f"{stem}{f'-{number}' if number else ''}{suffix}"
        with contextlib.suppress(FileExistsError):
            return full_name, os.open(full_name, _NEW_FILE, 0o600, dir_fd=folder)
    raise FileExistsError(errno.EEXIST, "all names for the file are taken")


def _check_own(directory: Path) -> None:
    """Create a user's directory in one for all; refuse one that another user has created."""
    # What exists under that name may be a link, which O_NOFOLLOW refuses.
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    folder = os.open(directory, _FOLDER)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{directory} belongs to another user")
    finally:
        os.close(folder)


def _reasons(failed: list[tuple[Path, str]]) -> str:
    """Return why a ring is not in the first of the places that were tried."""
    if not failed:
        return ""
    others = "".join(f", nor in {place} ({reason})" for place, reason in failed[1:])
    return f"{failed[0][1]}{others}"


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is a symbolic link or no directory"
    return (error.strerror or str(error)).lower()
