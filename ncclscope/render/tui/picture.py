"""Composes the screen of the live view: head, list, lower pane, log and keys."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from ncclscope.engine.verdict import Verdict
from ncclscope.render.console.blocks import COLOURS, duration
from ncclscope.render.tui import details
from ncclscope.render.tui.board import Board
from ncclscope.render.tui.divergence import divergence_lines
from ncclscope.render.tui.entries import (
    CommEntry,
    RankEntry,
    comm_entries,
    comm_label,
    rank_entries,
)
from ncclscope.render.tui.events import Events
from ncclscope.render.tui.lists import comm_lines, rank_lines
from ncclscope.render.tui.marks import MARKS
from ncclscope.render.tui.recent import RecentCalls
from ncclscope.render.tui.spans import Line, aligned_right, cropped, rule
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll
from ncclscope.wording.names import plural, ranks_text

_TALL = 40
"""Terminal lines from which the log has a pane of its own."""
_LOGGED = 5
_FRAME = 6
"""Lines outside list and pane: two of head, two rules, headings, keys."""
_LEAST_LIST = 3
_ORDER = [*MARKS]
_QUIET_SHOWN = 2.0
"""Seconds without progress on any rank from which they are shown."""


class Picture:
    """Composes screens of a job, as the user has chosen.

    Args:
        source: Directory of the rings.
        events: Log of events.
        has_keys: Whether keys can be read.

    Attributes:
        board: Choices of the user.
        origin: Origin of the verdict, if the job had ended before the watch began.
    """

    def __init__(self, source: str, events: Events, *, has_keys: bool = True) -> None:
        self.board = Board()
        self.origin = ""
        self._source = printable(source)
        self._events = events
        self._has_keys = has_keys
        self._recent = RecentCalls()
        self._rows: Sequence[RankEntry | CommEntry] = ()
        self._pages = (1, 1)
        self._drawn: tuple[Verdict | None, str, int] | None = None
        self._divergence: list[Line] = []

    def press(self, key: str) -> None:
        """Handle a key."""
        self.board.press(
            key,
            [_name(row) for row in self._rows],
            [row.name if isinstance(row, RankEntry) else "" for row in self._rows],
            [row.mark not in ("", "x") for row in self._rows],
            self._pages,
        )

    def turn_to(self, poll: Poll) -> None:
        """Show a divergence or hang that has just been found, and pick its rank."""
        cause = poll.verdict.cause if poll.verdict is not None else None
        self.board.show("divergence")
        if cause is None:
            return
        named = cause.diverging_ranks or cause.candidate_ranks
        paths = [cursor.path for cursor in poll.ranks if cursor.rank in named[:1]]
        if paths:
            self.board.picked["ranks"] = paths[-1]
        if cause.comm is not None:
            self.board.picked["comms"] = cause.comm.key

    def lines(self, poll: Poll, width: int, height: int, wall: float) -> list[Line]:
        """Return the lines of the screen.

        Args:
            poll: Sample of the job.
            width: Width of the terminal in cells.
            height: Height of the terminal in lines.
            wall: Time of the sample in seconds since 1970.
        """
        board = self.board
        rows = self._rows = self._list(poll, wall)
        is_tall = height >= _TALL and board.lower != "log" and not board.is_full
        room = max(2, height - (4 if board.is_full else _FRAME) - (_LOGGED + 1) * is_tall)
        upper = 0 if board.is_full else self._upper(room, len(rows))
        self._pages = upper, room - upper
        lines = [self._head(poll, width, wall), self._second(poll, width)]
        if not board.is_full:
            lines += self._listed(rows, upper, width)
        title, below = self._below(poll, width, room - upper)
        lines.append(rule(title, width))
        lines += [*below, *[[]] * room][: room - upper]
        if is_tall:
            logged = details.event_lines(self._events.all[-_LOGGED:], width)
            lines += [rule([("LOG", "bold")], width), *logged, *[[]] * (_LOGGED - len(logged))]
        return [*lines[: height - 1], self._foot(width)]

    # --- above -------------------------------------------------------------------------------

    def _head(self, poll: Poll, width: int, wall: float) -> Line:
        word = poll.word
        style = f"bold {COLOURS[poll.status]}{' reverse' * poll.in_trouble}"
        about = _about(poll, wall)
        clock = time.strftime("%H:%M:%S", time.localtime(wall))
        left: Line = [(f" {word} ", style), (f" {about}  ", "")]
        room = width - len(word) - len(about) - len(clock) - 7
        if room > 8:
            # Crop a path at its beginning.
            path = self._source
            left.append((path if len(path) <= room else f"…{path[1 - room :]}", "dim"))
        return aligned_right(left, [(f"{clock} ", "dim")], width)

    def _second(self, poll: Poll, width: int) -> Line:
        cause = poll.cause
        if cause is not None and self.board.lower != "divergence":
            return [(cropped(f" {printable(cause.summary)}", width), "red")]
        if cause is not None:
            return [(cropped(f" all of it: ncclscope diagnose {self._source}", width), "dim")]
        if poll.activity == "waiting":
            return [(" no ring yet: is the job started with `ncclscope run`?", "dim")]
        return [
            (cropped(f" {event.clock} {event.text}", width), "dim")
            for event in self._events.all[-1:]
        ]

    def _list(self, poll: Poll, wall: float) -> Sequence[RankEntry | CommEntry]:
        rows: Sequence[RankEntry | CommEntry]
        rows = rank_entries(poll) if self.board.upper == "ranks" else comm_entries(poll, wall)
        if not self.board.worst_first:
            return rows
        last = len(_ORDER)
        return sorted(rows, key=lambda row: _ORDER.index(row.mark) if row.mark else last)

    def _upper(self, room: int, count: int) -> int:
        """Return the height in lines of the upper list, of ``room`` lines for both panes."""
        below = {"divergence": room * 2 // 3, "help": room}.get(self.board.lower, room // 2)
        return max(min(count, max(room - below, _LEAST_LIST)), 1)

    def _listed(self, rows: Sequence[RankEntry | CommEntry], height: int, width: int) -> list[Line]:
        board = self.board
        at = board.place([_name(row) for row in rows])
        top = min(board.top[board.upper], max(0, len(rows) - height))
        top = board.top[board.upper] = min(max(top, at - height + 1), at)
        shown = rows[top : top + height]
        ranks = [row for row in shown if isinstance(row, RankEntry)]
        comms = [row for row in shown if isinstance(row, CommEntry)]
        if board.upper == "ranks":
            heading, lines = rank_lines(ranks, at - top, width)
        else:
            heading, lines = comm_lines(comms, at - top, width)
        title: Line = [("RANKS" if board.upper == "ranks" else "COMMUNICATORS", "bold")]
        if len(shown) < len(rows):
            title.append((f" {top + 1}-{top + len(shown)} of {len(rows)}", ""))
        if board.worst_first:
            title.append((", worst first", ""))
        title += _marked(rows, width - 40)
        other = "tab: communicators" if board.upper == "ranks" else "tab: ranks"
        missing: list[Line] = [[]] * (height - len(lines))
        return [rule(title, width, other if self._has_keys else ""), heading, *lines, *missing]

    # --- below -------------------------------------------------------------------------------

    def _below(self, poll: Poll, width: int, height: int) -> tuple[Line, list[Line]]:
        board = self.board
        if board.lower == "help":
            title: Line = [("KEYS AND MARKS", "bold")]
            lines = details.help_lines(width, has_keys=self._has_keys)
            return title, self._scrolled(lines, height)
        if board.lower == "log":
            lines = details.event_lines(self._events.all, width, wrapped=True)
            back = board.scroll = min(board.scroll, max(0, len(lines) - height))
            stop = len(lines) - back
            start = max(0, stop - height)
            return [("LOG", "bold"), *_more(back, has_older=start > 0)], lines[start:stop]
        if board.lower == "divergence":
            lines = self._scrolled(self._divergence_lines(poll, width), height)
            left = len(self._divergence) - board.scroll - len(lines)
            more: Line = [(f" {plural(left, 'line')} more: space", "dim")] if left > 0 else []
            name = poll.status.upper() if poll.in_trouble else "DIVERGENCE"
            return [(name, "bold red" if poll.in_trouble else "bold"), *more], lines
        return self._calls(poll, width, height)

    def _calls(self, poll: Poll, width: int, height: int) -> tuple[Line, list[Line]]:
        if not self._rows:
            return [("LAST CALLS", "bold")], []
        row = self._rows[self.board.place([_name(row) for row in self._rows])]
        back = self.board.scroll
        count = max(1, height - 1)
        cursor, key = (row.cursor, None) if isinstance(row, RankEntry) else (row.leader, row.key)
        calls = self._recent.of(cursor, count + back, key, poll.now)
        if back:
            back = self.board.scroll = min(back, max(0, len(calls) - count))
            calls = calls[: len(calls) - back]
        has_older = len(calls) >= count and calls[0].position > 0
        calls = calls[max(0, len(calls) - count) :]
        if isinstance(row, CommEntry):
            title: Line = [(comm_label(row.comm).upper(), "bold")]
            backend = f", {printable(row.comm.backend)}" if row.comm.backend else ""
            title.append((f" {ranks_text(row.comm.ranks)}{backend}: last calls", ""))
            lines = details.comm_calls(row, calls, width)
        else:
            title = [(f"RANK {row.name}".upper(), "bold"), (f"{_who(row)}: last calls", "")]
            lines = details.rank_calls(row, calls, width)
        if not calls:
            lines.append([("none among the newest records of its ring", "dim")])
        return [*title, *_more(back, has_older=has_older)], lines

    def _divergence_lines(self, poll: Poll, width: int) -> list[Line]:
        note = self.origin
        verdict = poll.verdict if poll.in_trouble else None
        if verdict is None:
            shared = {
                key for cursor in poll.ranks for key, one in cursor.comm_cursors.items() if one.seq
            }
            count = plural(len(shared), "communicator")
            where = f"on {count}" if shared else "as soon as they post calls"
            found = "No divergence and no hang has been found."
            compared = f"Ranks are compared call by call, {where}."
            note = " ".join(filter(None, (found, note, compared)))
        drawn = verdict, note, width
        if self._drawn != drawn:
            self._drawn = drawn
            self._divergence = divergence_lines(verdict, note, width)
        return self._divergence

    def _scrolled(self, lines: list[Line], height: int) -> list[Line]:
        start = self.board.scroll = min(self.board.scroll, max(0, len(lines) - height))
        return lines[start : start + height]

    def _foot(self, width: int) -> Line:
        if not self._has_keys:
            return [(cropped(" no keys: stdin is no terminal; Ctrl-C ends", width - 1), "dim")]
        if self.board.typed:
            return [(f" rank {self.board.typed}", "bold")]
        line: Line = []
        for key, what in _FOOT:
            if key == "tab" and self.board.upper == "comms":
                what = "ranks"
            if sum(len(text) for text, _ in line) + len(key) + len(what) + 3 >= width:
                break
            line += [(f" {key}", "bold"), (f" {what} ", "dim")]
        return line


_FOOT = (
    ("q", "quit"),
    ("?", "help"),
    ("jk", "pick"),
    ("tab", "comms"),
    ("enter", "calls"),
    ("d", "divergence"),
    ("l", "log"),
    ("n", "next marked"),
    ("f", "full"),
    ("s", "worst first"),
    ("space b", "scroll"),
)


def _name(row: RankEntry | CommEntry) -> Hashable:
    return row.path if isinstance(row, RankEntry) else row.key


def _about(poll: Poll, wall: float) -> str:
    """Return the heading's facts: number of ranks, activity, age of the job."""
    run = poll.verdict.run if poll.verdict is not None else None
    if poll.activity == "waiting":
        return "for a ring to appear"
    expected = run.expected if run is not None else 0
    ranks = len({cursor.rank for cursor in poll.ranks if cursor.rank >= 0})
    parts = [f"{ranks} of {plural(max(expected, ranks), 'rank')}"]
    if poll.activity == "over":
        agree = " and agree" if poll.status == "ok" else ""
        return f"{parts[0]}, all have ended{agree}"
    if poll.in_trouble:
        moved = max((one.moved_at for one in poll.ranks if not one.over), default=poll.now)
        quiet = poll.now - moved
        is_quiet = quiet >= _QUIET_SHOWN
        parts.append(f"no progress for {duration(quiet)}" if is_quiet else "still moving")
    else:
        parts.append(poll.activity)
    ended = sum(cursor.over for cursor in poll.ranks)
    if ended:
        parts.append(f"{ended} ended")
    began = min((cursor.started_ns for cursor in poll.ranks if cursor.started_ns), default=0)
    if began:
        parts.append(f"up {duration(max(0.0, wall - began / 1e9))}")
    return ", ".join(parts)


def _who(row: RankEntry) -> str:
    parts = [f" pid {row.cursor.pid}"] if row.cursor.pid else []
    if row.cursor.host:
        parts.append(printable(row.cursor.host))
    if row.labels:
        parts.append(row.labels)
    return ", ".join(parts)


def _marked(rows: Sequence[RankEntry | CommEntry], room: int) -> Line:
    """Return the marked ranks or communicators, for the rule above the list."""
    line: Line = []
    for mark, (_, style) in MARKS.items():
        found = [row for row in rows if row.mark == mark]
        if not mark or not found or len(found) == len(rows):
            continue
        numbers = [row.cursor.rank for row in found if isinstance(row, RankEntry)]
        labels = [comm_label(row.comm) for row in found if isinstance(row, CommEntry)]
        names = dict.fromkeys(labels)
        text = ranks_text(numbers).partition(" ")[2] if numbers else " ".join(names)
        line.append((cropped(f"  {mark} {text}", room), style))
    return line


def _more(back: int, *, has_older: bool) -> Line:
    """Return the keys that scroll to newer and older lines."""
    parts = [f"{plural(back, 'newer line')}: space"] * (back > 0) + ["older: b"] * has_older
    return [(f", {', '.join(parts)}", "dim")] if parts else []
