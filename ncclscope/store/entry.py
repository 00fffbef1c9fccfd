"""What the default places hold: directories with the rings of a run, and bundles."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.readers import ring_files
from ncclscope.readers.ring.ranks import is_alive
from ncclscope.ring.reader import RingFile
from ncclscope.store.home import BUNDLES, bases, home_name, opened
from ncclscope.untrusted import number, text

ALARM = ".alarm"
"""Marks rings of a run that failed, or of which a divergence or a hang was reported."""
HEALTHY = ".healthy"
"""Marks rings of a run that ended without an alarm."""
READ = ".read"
"""Marks rings or a bundle that somebody has read since the alarm."""
RUNNING = ".running-"
"""Begins the name of a file that a run holds locked as long as it uses the directory."""

_MOST_PIDS = 1 << 32
_UNDER_CONSTRUCTION = 60.0
"""Seconds for which a file without a ring's header may become one."""
_UNKNOWN = 86_400.0
"""Seconds for which a process in another container counts as alive after its last heartbeat."""


class State(Enum):
    """Why an entry may or may not be removed."""

    IN_USE = "in use"
    ALARM = "alarm, not read"
    READ = "alarm, read"
    HEALTHY = "healthy"


@dataclass(frozen=True)
class Entry:
    """A directory with the rings of a run, or a bundle.

    Attributes:
        base: The default place.
        parts: Names of the directories that lead from there to this one.
        size: Bytes on the disk.
        changed: When a file in it was last changed, seconds since 1970.
    """

    base: Path
    parts: tuple[str, ...]
    size: int
    changed: float

    @property
    def path(self) -> Path:
        """The directory."""
        return self.base.joinpath(*self.parts)

    @property
    def is_bundle(self) -> bool:
        """Whether it is a bundle."""
        return BUNDLES in self.parts

    def state(self) -> State:
        """Examine the rings and marks in it."""
        if not self.is_bundle and is_used(self.path):
            return State.IN_USE
        alarm, read = marked(self.path, ALARM), marked(self.path, READ)
        may_be_healthy = not (self.is_bundle or alarm)
        if may_be_healthy and (marked(self.path, HEALTHY) or _all_exited(self.path)):
            return State.HEALTHY
        return State.READ if read > 0 and read >= alarm else State.ALARM


def entries() -> list[Entry]:
    """Return what this user has in the default places, oldest first."""
    found = []
    for base in bases():
        rings = [(home_name(), name) for name in _folders(base, (home_name(),)) if name != BUNDLES]
        above = (home_name(), BUNDLES)
        for parts in (*rings, *((*above, name) for name in _folders(base, above))):
            with contextlib.suppress(FileNotFoundError):  # its run has just removed it
                found.append(_entry(base, parts))
    return sorted(found, key=lambda entry: entry.changed)


def mark(path: Path, name: str) -> None:
    """Leave a mark in the entry that holds a path; elsewhere, or without room, do nothing."""
    with contextlib.suppress(OSError, ValueError):
        parts = _parts(path.resolve())
        if parts is not None:
            with opened(*parts) as folder:
                leave_mark(folder, name)


def leave_mark(folder: int, name: str) -> None:
    """Create a mark in an open directory, or renew its time; without room do nothing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        file = os.open(name, flags, 0o600, dir_fd=folder)
        os.utime(file)
        os.close(file)


def marked(path: Path, name: str) -> float:
    """Return when a mark was left, in seconds since 1970; 0 if there is none."""
    try:
        return (path / name).lstat().st_mtime
    except OSError:
        return 0.0


def is_used(path: Path) -> bool:
    """Return whether a run uses a directory, or a process may still write a ring in it."""
    with contextlib.suppress(OSError):
        if any(is_locked(path / name) for name in os.listdir(path) if name.startswith(RUNNING)):
            return True
    return any(map(may_live, ring_files(path)))


def is_locked(path: Path) -> bool:
    """Return whether the run that made a file is still there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def may_live(ring: Path) -> bool:
    """Return whether the process of a ring lives, or nobody here can know."""
    try:
        with RingFile(ring) as opened_ring:
            about, beat = opened_ring.about, opened_ring.heartbeat_ns / 1e9
        alive = is_alive(about, text(about.get("host")) or "", number(about.get("pid"), _MOST_PIDS))
        return time.time() - beat < _UNKNOWN if alive is None else alive
    except (OSError, DamagedFileError):
        with contextlib.suppress(OSError):
            found = ring.lstat()
            is_young = time.time() - found.st_mtime < _UNDER_CONSTRUCTION
            return is_young and stat.S_ISREG(found.st_mode)
    return False


def _all_exited(path: Path) -> bool:
    """Return whether each process with a ring there has recorded its normal end."""
    for ring in ring_files(path):
        try:
            with RingFile(ring) as found:
                if not found.exited_ns:
                    return False
        except (OSError, DamagedFileError):
            return False
    return True


def _parts(path: Path) -> tuple[Path, tuple[str, ...]] | None:
    """Return the entry that a path is in, as its place and the names that lead to it."""
    for base in bases():
        place = base.resolve()
        if path.is_relative_to(place / home_name()):
            parts = path.relative_to(place).parts
            size = 3 if parts[1:2] == (BUNDLES,) else 2
            return (base, parts[:size]) if len(parts) >= size else None
    return None


def _folders(base: Path, parts: tuple[str, ...]) -> list[str]:
    with contextlib.suppress(OSError), opened(base, parts) as folder, os.scandir(folder) as found:
        return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))
    return []


def _entry(base: Path, parts: tuple[str, ...]) -> Entry:
    size, times = 0, []
    for folder, _, names in os.walk(base.joinpath(*parts)):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                size += found.st_blocks * 512
                if name != READ:
                    times.append(found.st_mtime)
    changed = max(times) if times else base.joinpath(*parts).lstat().st_mtime
    return Entry(base, parts, size, changed)
