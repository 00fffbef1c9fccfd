"""The directory in a default place in which ``ncclscope run`` has its program record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.ring.place import fallbacks_of
from ncclscope.ring.reader import RingFile
from ncclscope.store.entry import ALARM, HEALTHY, RUNNING, leave_mark, marked, may_live
from ncclscope.store.home import Home, bases, home_name
from ncclscope.store.pruning import keep_within_limit
from ncclscope.store.removal import remove_marks, remove_rings

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 4


class DefaultPlaces(contextlib.AbstractContextManager["DefaultPlaces"]):
    """What one run uses of the default places, until it ends."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._directory: RunDirectory | None = None
        for base in bases():
            with contextlib.suppress(OSError):
                self._stack.enter_context(Home(base))

    def enter(self, make: Callable[[], Path], say: Callable[[str], None]) -> Path:
        """Make a directory for the rings of this run, and room for it.

        Args:
            make: Make the directory, or find the one of the same launcher's other tasks.
            say: Receives a sentence about each place that holds too much.
        """
        with contextlib.suppress(OSError):
            keep_within_limit(say)
        for _ in range(_ATTEMPTS):
            directory = make()
            try:
                self._directory = self._stack.enter_context(RunDirectory(directory))
                break
            except FileNotFoundError:  # another task has just removed it
                continue
            except OSError:  # where no file can be made and locked, nothing is removed
                break
        return directory

    def settle(self, run: str, *, alarm: bool, keep: bool) -> str:
        """Remove the rings of the run, or mark why they stay.

        Args:
            run: Name of the run.
            alarm: Whether it failed, or a divergence or a hang was reported.
            keep: Whether its rings are to stay in any case.

        Returns:
            What has become of the rings; empty if they stay.
        """
        return "" if self._directory is None else self._directory.settle(run, alarm, keep)

    def __exit__(self, *_exception: object) -> None:
        """Remove what is empty."""
        self._stack.close()


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """A directory with the rings of one run; the tasks of a launcher share one.

    A task holds a file in it locked while it runs. The last one to leave removes what is there,
    unless one of them has left a mark, or was killed and could not.

    Args:
        path: The directory.

    Raises:
        OSError: It does not exist any more, or nothing can be made in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = os.open(path, _FOLDER)
        try:
            if os.fstat(self._folder).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            self._name = f"{RUNNING}{uuid.uuid4().hex}"
            self._lock = os.open(self._name, _NEW_FILE, 0o600, dir_fd=self._folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._folder)
            raise

    def settle(self, run: str, alarm: bool, keep: bool) -> str:
        """See :meth:`DefaultPlaces.settle`."""
        if alarm or marked(self._path, ALARM):
            leave_mark(self._folder, ALARM)
            return ""
        if keep:
            leave_mark(self._folder, HEALTHY)
            return ""
        self._leave()
        names = os.listdir(self._folder)
        if {ALARM, HEALTHY} & set(names):
            return ""
        if any(name.startswith(RUNNING) for name in names):
            return "written; the last task here removes them, unless one fails"
        if self._remove(run):
            return "removed: no alarm was raised; --keep and --dir DIR keep them"
        leave_mark(self._folder, HEALTHY)
        return ""

    def _remove(self, run: str) -> bool:
        """Remove the rings of which the process has ended; return whether none is left."""
        left = 0
        for path in (self._path, *fallbacks_of(self._path)):
            with contextlib.suppress(OSError):
                folder = os.open(path, _FOLDER)
                try:
                    if os.fstat(folder).st_uid == os.getuid():
                        left += remove_rings(folder, path, lambda ring: _is_over(ring, run))
                        if not left:
                            remove_marks(folder)
                            os.rmdir(path)
                            if path != self._path and path.parent.name == home_name():
                                os.rmdir(path.parent)  # unless another run uses it
                finally:
                    os.close(folder)
        return not left

    def _leave(self) -> None:
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            os.close(self._lock)
            self._lock = -1

    def __exit__(self, *_exception: object) -> None:
        """Leave the directory; remove it if it is empty."""
        self._leave()
        os.close(self._folder)
        with contextlib.suppress(OSError):
            os.rmdir(self._path)


def _is_over(ring: Path, run: str) -> bool:
    """Return whether a ring is of a run, and its process has ended."""
    try:
        with RingFile(ring) as found:
            is_own = found.about.get("run", run) == run
    except (OSError, DamagedFileError):
        return False
    return is_own and not may_live(ring)
