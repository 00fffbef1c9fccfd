"""This user's directories in the default places, and safe access to what is in them.

Others may write to ``/dev/shm`` and ``/tmp``. So a home must belong to this user, no link is
followed below the place, and files are removed relative to a directory that is open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclscope.private import private_home

BUNDLES = "hangs"
"""Name of the directory in a home that holds bundles."""
_SHARED_MEMORY = Path("/dev/shm")
_ATTEMPTS = 4
_RETRY_SECONDS = 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def bases() -> list[Path]:
    """Return the default places, the preferred one first."""
    found = [_SHARED_MEMORY]
    with contextlib.suppress(FileNotFoundError):  # none can be written to
        found.append(Path(tempfile.gettempdir()))
    return list(dict.fromkeys(found))


def home_name() -> str:
    """Return the name of this user's directory in a default place."""
    return f"ncclscope-{os.getuid()}"


@contextlib.contextmanager
def opened(base: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a directory below a default place; yield its descriptor.

    Raises:
        OSError: One of its parents is a link, or belongs to another user.
    """
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
            if os.fstat(folder).st_uid != os.getuid():
                raise OSError(errno.EPERM, "it belongs to another user")
        yield folder
    finally:
        os.close(folder)


class Home(contextlib.AbstractContextManager["Home"]):
    """This user's directory in a default place, which stays while a process uses it.

    Without that, another user could make one of this name after the last run had removed it.

    Args:
        base: The default place.

    Attributes:
        base: The default place.
        path: The directory.

    Raises:
        OSError: It cannot be made, or belongs to another user.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        for _ in range(_ATTEMPTS):
            path = private_home(base)
            if path is None:
                raise OSError(errno.EPERM, f"no directory of this user can be made in {base}")
            self.path = path
            with contextlib.suppress(FileNotFoundError):
                self._folder = os.open(path, _FOLDER)
                # Do not wait for who removes it: that process may be stopped.
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if os.fstat(self._folder).st_nlink:
                        return
                os.close(self._folder)
            time.sleep(_RETRY_SECONDS)
        raise OSError(errno.EBUSY, f"{path} is being removed")

    def __exit__(self, *_exception: object) -> None:
        """Remove the directory if it is empty and no other process uses it."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(BUNDLES, dir_fd=self._folder)
            os.rmdir(self.path)
        os.close(self._folder)


def remove_empty_homes() -> None:
    """Remove this user's directories in the default places if nothing is in them."""
    for base in bases():
        if (base / home_name()).is_dir():
            with contextlib.suppress(OSError), Home(base):
                pass
