"""Which rings in a directory belong to what runs now."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.model import Run
from ncclscope.readers import follow_pointer, open_run
from ncclscope.readers.ring.crowd import without_long_over
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.ring import layout

__all__ = ["Rings", "current", "ring_files"]

SCAN_SECONDS = 1.0


def ring_files(directory: Path) -> Iterator[Path]:
    """Yields the rings at or below a directory, also those that went elsewhere for want of room."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if name.endswith(layout.MOVED_SUFFIX):
                yield from follow_pointer(Path(folder, name))
            elif name.endswith(layout.SUFFIX):
                yield Path(folder, name)


class Rings:
    """The rings of a directory, as they come and go.

    Args:
        directory: Where they are; it may not exist yet.

    Attributes:
        words: How far each has come, by its path.
        notes: What could not be read, by its path.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cursors: dict[Path, RingCursor] = {}
        self.notes: dict[Path, str] = {}
        self._old: set[Path] = set()
        """Rings of jobs that were over long before; they are not opened."""
        self._scanned_at = -1.0

    def run(self) -> Run:
        """Reads all that there is, of processes that have ended, too.

        Raises:
            InputError: It cannot be read.
        """
        return open_run(self.directory)

    def scan(self, now: float, wall_ns: int) -> None:
        """Looks for new rings, once in a while."""
        if self._scanned_at >= 0 and now - self._scanned_at < SCAN_SECONDS:
            return
        self._scanned_at = now
        here = set(ring_files(self.directory))
        new = sorted(here - self.cursors.keys() - self._old)
        wanted = without_long_over(new, [])
        self._old.update({*new} - {*wanted})
        for path in wanted:
            try:
                self.cursors[path] = RingCursor(path, now, wall_ns)
                self.notes.pop(path, None)
            except DamagedFileError as error:  # one that is being made has no head yet
                self.notes[path] = str(error)
            except OSError as error:
                self.notes[path] = f"{path} cannot be read: {error.strerror or error}"
        for path in self.cursors.keys() - here:
            del self.cursors[path]

    def poll(self, now: float) -> list[RingCursor]:
        """Looks at all rings of processes that are not over; returns those that have moved."""
        moved = []
        for path, cursor in list(self.cursors.items()):
            was_over = cursor.over
            cursor.ask(now)
            if was_over and cursor.over:
                continue
            try:
                if cursor.poll(now):
                    moved.append(cursor)
            except (DamagedFileError, OSError) as error:
                self.notes[path] = str(error)
                del self.cursors[path]
        return moved


def current(rings: Sequence[RingCursor]) -> tuple[list[RingCursor], list[RingCursor]]:
    """Tells what runs from what is over.

    Processes that have a communicator in common belong together. Where any of them still runs,
    the records of those that have ended count, too: others may be waiting for them. Unless
    another process has taken their rank since. An engine core that is left without workers
    has no job.

    Returns:
        Those that count, and those whose job is over.
    """
    living, past = [], []
    for job in _jobs(rings):
        running = [cursor for cursor in job if not cursor.over]
        if not running:
            past += job
            continue
        newest = {
            cursor.rank: max(other.started_ns for other in running if other.rank == cursor.rank)
            for cursor in running
        }
        for cursor in job:
            if cursor.over and cursor.started_ns <= newest.get(cursor.rank, -1):
                past.append(cursor)
            else:
                living.append(cursor)
    if past and all(cursor.about.get("role") == "engine" for cursor in living):
        return [], [*living, *past]
    return living, past


def _jobs(rings: Sequence[RingCursor]) -> list[list[RingCursor]]:
    """Groups processes by the communicators that they share."""
    place: dict[str, int] = {}
    groups: dict[int, list[RingCursor]] = {}
    for number, cursor in enumerate(rings):
        joined = {place[key] for key in cursor.comm_cursors if key in place}
        target = min(joined, default=number)
        merged = groups.setdefault(target, [])
        merged.append(cursor)
        for key in cursor.comm_cursors:
            place[key] = target
        for other in joined - {target}:
            moved = groups.pop(other)
            merged += moved
            for member in moved:
                place.update(dict.fromkeys(member.comm_cursors, target))
    return list(groups.values())
