"""Say that a process is not recorded, in a file of one page that is made before its ring.

A process without a ring would otherwise look like one that never came. The page is reserved when
the file is made, so that the reason can be written even after the file system is full. The file is
removed when the ring exists. Where no place takes a page, the process says it to ``ncclscope run``
over a socket.

That is an abstract Unix socket, which exists by name alone: the process inherits no descriptor, no
file system is involved, and neither end waits for the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ncclscope.errors import NcclscopeError, os_reason
from ncclscope.ring import layout
from ncclscope.ring.place import UNTRACED_SUFFIX, leave, leave_pointer, make_in, new_name, places
from ncclscope.settings import variable

VERSION = 1
PAGE = 4096
PARTS = ((0, PAGE),)
"""What is reserved of the file: all of it."""
REPORTS = "REPORTS"
"""Variable of ncclscope with the name of the socket on which the launcher listens."""
UNFINISHED = "its ring was not finished: the process ended, or was stopped, while it made one"
_FIELDS = (
    *("host", "pid", "rank", "world_size", "parent", "ancestors", "started_ns", "boot_id"),
    *("pid_namespace", "start_ticks", "run", "attempt"),
)
_LONGEST_TEXT = 200
_LONGEST_REASON = 600


@contextlib.contextmanager
def until_recorded(directory: str | os.PathLike[str], about: Mapping[str, Any]) -> Iterator[None]:
    """Leave a file that says that this process is not recorded, unless the block succeeds.

    Args:
        directory: Requested directory of the ring, which the block makes.
        about: Process description of the ring.
    """
    stone = _Tombstone(Path(directory), about)
    try:
        yield
    except BaseException as error:
        stone.keep(_reason(error))
        raise
    stone.remove()


def page_of(about: Mapping[str, Any], why: str, *, is_final: bool = True) -> bytes:
    """Return the contents of the file: a JSON object, filled up with blanks to one page.

    Args:
        about: Process description of the ring.
        why: Why the process is not recorded.
        is_final: Whether it has no ring, rather than none yet.
    """
    found = {name: _bounded(about[name]) for name in _FIELDS if name in about}
    document = {
        "ncclscope_untraced": VERSION,
        **found,
        "time_ns": time.time_ns(),
        "final": is_final,
        "why": why[:_LONGEST_REASON],
    }
    text = json.dumps(document, default=str)
    if len(text) >= PAGE:  # each letter outside of ASCII takes up to twelve bytes
        text = json.dumps({**document, "ancestors": [], "why": ascii(why)[:_LONGEST_TEXT]})
    return f"{text[: PAGE - 1]:<{PAGE - 1}}\n".encode("ascii", "replace")


class _Tombstone:
    """The file of one process; where none can be made, nothing until :meth:`keep`."""

    def __init__(self, directory: Path, about: Mapping[str, Any]) -> None:
        self._about = about
        self._descriptor = -1
        self._paths: list[Path] = []
        name = new_name() + UNTRACED_SUFFIX
        for place in places(directory):
            is_own = place != directory
            try:
                path, self._descriptor = make_in(place, name, PAGE, PARTS, is_own=is_own)
            except OSError:
                continue
            self._paths = [path]
            self._write(UNFINISHED, is_final=False)
            if is_own:
                leave_pointer(directory, path)
                self._paths.append(directory / (path.name + layout.MOVED_SUFFIX))
            break

    def keep(self, why: str) -> None:
        """Write the reason, or tell the launcher where there is no file."""
        if self._descriptor < 0:
            _report(page_of(self._about, why))
            return
        self._write(why)
        self._close()

    def remove(self) -> None:
        """Remove the file: the process is recorded."""
        self._close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
            leave(path.parent)

    def _write(self, why: str, *, is_final: bool = True) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, page_of(self._about, why, is_final=is_final), 0)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _reason(error: BaseException) -> str:
    if isinstance(error, NcclscopeError):
        return error.message
    return os_reason(error) if isinstance(error, OSError) else str(error) or repr(error)


def _bounded(value: Any) -> Any:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value


def _report(page: bytes) -> None:
    """Send a page to the launcher, if one listens; never wait for it."""
    name = variable(REPORTS)
    if not name:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.setblocking(False)
        end.connect(b"\0" + name.encode("utf-8", "surrogateescape"))
        end.send(page, socket.MSG_NOSIGNAL)
