"""The files that a run leaves: rings, and those of processes that could not be recorded."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections import Counter
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank
from ncclscope.model.text import plural
from ncclscope.readers.untraced import WHY, parse_untraced, read_untraced
from ncclscope.ring import layout
from ncclscope.ring.place import UNTRACED_SUFFIX, fallbacks_of, make_in, new_name, places
from ncclscope.ring.tombstone import PAGE, PARTS

_BACKLOG = 4096
_MOST_REPORTS = 4096
_CREDENTIALS = struct.Struct("3i")
"""Of a process at the other end of a socket: pid, uid, gid."""


class NewRings:
    """The files that a run writes, also those for which its directory has no room.

    Args:
        directory: Requested directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fallbacks = fallbacks_of(directory)
        self._before = {place: _names(place) for place in (directory, *self._fallbacks)}
        self.reports = Reports(directory)

    def places(self) -> list[Path]:
        """Return the directories to read."""
        self.reports.take()
        here = [self._directory] if _names(self._directory) else []
        return [*here, *self._elsewhere()]

    def count(self) -> int:
        """Return how many rings were written."""
        return sum(name.endswith(layout.SUFFIX) for name in self._new())

    def untraced(self) -> list[str]:
        """Return how many processes could not be recorded and why, a line for each reason."""
        found: list[Rank | None] = []
        for place in self.places():
            for name in _names(place) - self._before[place]:
                if name.endswith(UNTRACED_SUFFIX):
                    with contextlib.suppress(OSError, DamagedFileError):
                        found.append(read_untraced(place / name))
        found += self.reports.unkept
        whys = Counter(str(one.details[WHY]) for one in found if one is not None)
        return [
            f"{plural(count, 'process')} could not be recorded: {why}"
            for why, count in whys.items()
        ]

    def _new(self) -> set[str]:
        places = (self._directory, *self._fallbacks)
        return {name for place in places for name in _names(place) - self._before[place]}

    def _elsewhere(self) -> list[Path]:
        """Return the other directories with files that no file in the requested one names."""
        named = _names(self._directory)
        return [place for place in self._fallbacks if _names(place) - self._before[place] - named]


class Reports:
    """Takes the reports of processes that could not even leave a file, and leaves it for them.

    The kernel keeps the reports until :meth:`take`, so that no process waits for this one. Where
    nobody listens, a process loses nothing but its report.

    Args:
        directory: Requested directory of the rings.

    Attributes:
        name: Name of the socket, for the environment; empty where none can be made.
        unkept: The processes for which no place takes a file from this process either.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken = 0
        self.unkept: list[Rank] = []
        self.name = f"ncclscope-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(b"\0" + self.name.encode("ascii"))
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
        except OSError:
            self.name = ""

    def close(self) -> None:
        """Listen no longer."""
        self._socket.close()
        self.name = ""

    def take(self) -> None:
        """Write a file for each report that has come since the last call."""
        while self.name and self._taken < _MOST_REPORTS:
            try:
                end, _ = self._socket.accept()
            except OSError:  # there is none
                return
            with end:
                end.setblocking(False)
                with contextlib.suppress(OSError, DamagedFileError):
                    self._keep(end)

    def _keep(self, end: socket.socket) -> None:
        # Any user of the machine can connect: the name of a socket has no permissions.
        sent = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        page = end.recv(PAGE)
        if _CREDENTIALS.unpack(sent)[1] not in (os.getuid(), 0):
            return
        rank = parse_untraced(page, "a report")
        self._taken += 1
        name = f"{new_name()}-{self._taken}{UNTRACED_SUFFIX}"
        for place in places(self._directory):
            with contextlib.suppress(OSError):
                is_own = place != self._directory
                _, descriptor = make_in(place, name, PAGE, PARTS, is_own=is_own)
                with open(descriptor, "wb") as file:
                    file.write(page)
                return
        if rank is not None:
            self.unkept.append(rank)


def _names(directory: Path) -> set[str]:
    """Return the names of rings and the like in a directory, and of those that it points to."""
    with contextlib.suppress(OSError):
        names = (name.removesuffix(layout.MOVED_SUFFIX) for name in os.listdir(directory))
        return {name for name in names if name.endswith((layout.SUFFIX, UNTRACED_SUFFIX))}
    return set()
