"""Log of events of a watched job."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.render.console.blocks import duration
from ncclscope.render.console.watch import one_line
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll
from ncclscope.wording.names import plural, ranks_text

_KEPT = 1000


@dataclass(frozen=True)
class Event:
    """An event of the job.

    Attributes:
        time: Seconds since 1970.
        text: Description.
        style: Style in which it is shown.
    """

    time: float
    text: str
    style: str = ""

    @property
    def clock(self) -> str:
        """Local time of day as ``HH:MM:SS``."""
        return time.strftime("%H:%M:%S", time.localtime(self.time))


class Events:
    """Derives events from consecutive samples of a job.

    Args:
        wall: Returns the seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._known: dict[Path, RingCursor] = {}
        self._ended: set[Path] = set()
        self._stuck: dict[Path, float] = {}
        self._was_in_trouble = False
        self._activity = ""

    @property
    def all(self) -> list[Event]:
        """The newest 1,000 events, oldest first."""
        return list(self._kept)

    def add(self, text: str, style: str = "") -> None:
        """Add an event that does not come from a sample."""
        self._kept.append(Event(self._wall(), printable(text), style))

    def note(self, poll: Poll) -> None:
        """Add the differences between this sample and the previous one."""
        here = {cursor.path: cursor for cursor in poll.ranks}
        if poll.activity == "over" and not self._activity:
            self._add_ranks(here, here, "had ended before this watch began")
            self._ended, self._known = set(here), here
        self._add_ranks(here.keys() - self._known.keys(), here, "appeared")
        self._add_ranks(self._known.keys() - here.keys(), self._known, "gone: no longer counted")
        self._note_ends(here)
        self._note_stalls(poll, here)
        self._known = here
        if poll.activity == "over" and self._activity not in ("", "over"):
            self.add("all processes have ended")
        self._activity = poll.activity
        if poll.in_trouble and (poll.changed or not self._was_in_trouble):
            self.add(one_line(poll), "bold red")
        elif self._was_in_trouble and not poll.in_trouble:
            self.add(f"the trouble is over: {one_line(poll)}", "green")
        self._was_in_trouble = poll.in_trouble

    def _note_ends(self, here: dict[Path, RingCursor]) -> None:
        ended = {path for path, cursor in here.items() if cursor.over}
        new = ended - self._ended
        self._ended = ended
        orderly = {path for path in new if here[path].exited}
        self._add_ranks(orderly, here, "exited normally")
        self._add_ranks(new - orderly, here, "ended without a record: killed or crashed", "yellow")

    def _note_stalls(self, poll: Poll, here: dict[Path, RingCursor]) -> None:
        new = poll.stuck - self._stuck.keys()
        if new:
            seconds = duration(min(poll.now - here[path].moved_at for path in new if path in here))
            self._add_ranks(new, here, f"stalled: inside a collective for {seconds}", "yellow")
        moved = {
            path: cursor.moved_at - self._stuck[path]
            for path in self._stuck.keys() - poll.stuck
            if (cursor := here.get(path)) is not None and not cursor.over
        }
        if moved:
            self._add_ranks(moved, here, f"resumed after {duration(max(moved.values()))}", "green")
        self._stuck = {path: here[path].moved_at for path in poll.stuck if path in here}

    def _add_ranks(
        self, paths: Iterable[Path], among: dict[Path, RingCursor], what: str, style: str = ""
    ) -> None:
        found = [among[path] for path in paths if path in among]
        ranks = [cursor.rank for cursor in found if cursor.rank >= 0]
        others = len(found) - len(ranks)
        who = [ranks_text(ranks)] if ranks else []
        who += [plural(others, "other process" if others == 1 else "other processe")] * (others > 0)
        if who:
            pid = f", pid {found[0].pid}" if len(found) == 1 and found[0].pid else ""
            self.add(f"{' and '.join(who)} {what}{pid}", style)
