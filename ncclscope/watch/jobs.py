"""Find the rings in a directory that belong to running jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model import Rank, Run
from ncclscope.model.metadata import SERVICE
from ncclscope.model.ties import tied
from ncclscope.readers import open_run, ring_files, untraced_files
from ncclscope.readers.attempts import Attempts
from ncclscope.readers.ring.crowd import without_long_over
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.readers.untraced import read_untraced
from ncclscope.untrusted import check_kind

SCAN_SECONDS = 1.0


class Rings:
    """The rings of some directories, as they appear and disappear.

    Args:
        *directories: Directories of the rings; they may not exist yet.

    Attributes:
        cursors: Cursor of each ring by path.
        notes: Reason why a ring could not be read, by path.
        untraced: Processes that said that they are not recorded, by path.
    """

    def __init__(self, *directories: Path) -> None:
        self.directories = directories
        self.cursors: dict[Path, RingCursor] = {}
        self.notes: dict[Path, str] = {}
        self.untraced: dict[Path, Rank] = {}
        self._old: set[Path] = set()
        """Rings of jobs that ended long ago; they are not opened."""
        self._scanned_at = -1.0

    @property
    def silent(self) -> Mapping[str, str]:
        """Hosts of which nothing is known now, each with the reason; none for a directory."""
        return {}

    def is_lost(self, cursor: RingCursor) -> bool:
        """Return whether nothing is known of a process now, since its host does not report."""
        return False

    def seen_at(self, cursor: RingCursor, now: float) -> float:
        """Return until when the progress of a process is known, in seconds by that clock.

        Args:
            cursor: Cursor of the process.
            now: Seconds by a monotonic clock.
        """
        return now

    def leave_out(self, error: InputError) -> bool:
        """Return whether the host that an error is about is silent from now on."""
        return False

    def run(self) -> Run:
        """Read all rings of the directories, including those of ended processes.

        Raises:
            InputError: They cannot be read.
        """
        return open_run(*self.directories)

    def scan(self, now: float, wall_ns: int, *, at_once: bool = False) -> bool:
        """Add new rings and drop removed ones, at most once per `SCAN_SECONDS`.

        Args:
            now: Seconds by a monotonic clock.
            wall_ns: Nanoseconds since 1970 at the same moment.
            at_once: Whether to do it now.

        Returns:
            Whether there are new rings.
        """
        if self._scanned_at >= 0 and now - self._scanned_at < SCAN_SECONDS and not at_once:
            return False
        before = len(self.cursors)
        self._scanned_at = now
        here = {path for directory in self.directories for path in ring_files(directory)}
        new = sorted(here - self.cursors.keys() - self._old)
        wanted = without_long_over(new, [])
        self._old.update({*new} - {*wanted})
        for path in wanted:
            try:
                check_kind(path)
                self.cursors[path] = RingCursor(path, now, wall_ns)
                self.notes.pop(path, None)
            except DamagedFileError as error:  # a ring under construction has no header yet
                self.notes[path] = str(error)
            except OSError as error:
                self.notes[path] = f"{path} cannot be read: {error.strerror or error}"
        self._scan_untraced()
        has_new = len(self.cursors) > before
        for path in self.cursors.keys() - here:
            del self.cursors[path]
        return has_new

    def _scan_untraced(self) -> None:
        """Read the files of processes that are not recorded; few jobs have any."""
        found: dict[Path, Rank] = {}
        for path in (path for one in self.directories for path in untraced_files(one)):
            with contextlib.suppress(DamagedFileError, OSError):
                if (rank := self.untraced.get(path) or read_untraced(path)) is not None:
                    found[path] = rank
        self.untraced = found

    def poll(self, now: float) -> list[RingCursor]:
        """Poll the rings of live processes; return the cursors that have moved."""
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
    """Separate the rings of running jobs from those of ended jobs.

    Processes that share a communicator form a job. While any of them runs, the rings of its
    ended processes count, too, since the others may wait for them. An ended process does not
    count if a newer one has its rank. An engine core without workers is not a job.

    Returns:
        Cursors of running jobs, and cursors of ended jobs.
    """
    living, past = [], []
    attempts = Attempts(cursor.about for cursor in rings)
    kept = [cursor for cursor in rings if attempts.is_newest(cursor.about)]
    for job in tied(kept, lambda cursor: cursor.comm_cursors):
        running = [cursor for cursor in job if not cursor.over]
        if not running:
            past += job
            continue
        newest = {
            cursor.rank: max(other.started_ns for other in running if other.rank == cursor.rank)
            for cursor in running
        }
        for cursor in job:
            replaced = cursor.rank >= 0 and cursor.started_ns <= newest.get(cursor.rank, -1)
            if cursor.over and replaced:
                past.append(cursor)
            else:
                living.append(cursor)
    past += [cursor for cursor in rings if not attempts.is_newest(cursor.about)]
    if past and all(cursor.about.get("role") in SERVICE for cursor in living):
        return [], [*living, *past]
    return living, past
