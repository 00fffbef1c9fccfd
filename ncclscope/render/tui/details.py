"""Lower pane: last calls, the log, and the help."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest

from ncclscope.model import Call, State
from ncclscope.render.tui.entries import CommEntry, RankEntry, comm_label
from ncclscope.render.tui.events import Event
from ncclscope.render.tui.lists import WIDE, place_text
from ncclscope.render.tui.marks import MARKS
from ncclscope.render.tui.spans import Column, Line, Span, cropped, table
from ncclscope.wording.names import call_text, ranks_text


def rank_calls(entry: RankEntry, calls: Sequence[Call], width: int) -> list[Line]:
    """Return the last calls of a rank, under their headings.

    Args:
        entry: The rank.
        calls: Calls from its ring, oldest first.
        width: Width of a line in cells.
    """
    communicators = entry.cursor.comm_cursors
    columns = [Column("comm", least=6, most=24), Column("call", right=True, least=6)]
    rows: list[list[Span]] = []
    for call in calls:
        on_comm = communicators.get(call.comm)
        label = comm_label(on_comm.comm) if on_comm is not None else "?"
        # The state of this call counts, too: the cursor may have skipped earlier ones.
        is_known = call.state is not State.SCHEDULED or (on_comm is not None and on_comm.tells)
        named = call if on_comm is None else call.with_root(on_comm.comm.ranks)
        cells = _call_cells(named, width, is_state_known=is_known)
        rows.append([(label, ""), (f"#{call.seq}", ""), *cells])
    return _called(columns, rows, width)


def comm_calls(entry: CommEntry, calls: Sequence[Call], width: int) -> list[Line]:
    """Return the last calls on a communicator, each with the ranks that have not posted it.

    Args:
        entry: The communicator.
        calls: Calls from the ring of the farthest member, oldest first.
        width: Width of a line in cells.
    """
    members = {cursor.rank: cursor.comm_cursors[entry.key].seq for cursor in entry.members}
    everyone = set(members) | set(entry.comm.ranks)
    is_known = entry.reports_completion
    columns = [Column("call", right=True, least=6), Column("missing", most=30)]
    rows: list[list[Span]] = []
    for call in calls:
        absent = [rank for rank in everyone if members.get(rank, 0) < call.seq]
        late = (ranks_text(absent), "yellow") if absent else ("", "")
        named = call.with_root(entry.comm.ranks)
        cells = _call_cells(named, width, is_state_known=is_known)
        rows.append([(f"#{call.seq}", ""), late, *cells])
    return _called(columns, rows, width)


def _call_cells(call: Call, width: int, *, is_state_known: bool) -> list[Span]:
    state = call.state.word if is_state_known else ""
    style = "yellow" if is_state_known and call.state is not State.COMPLETED else ""
    site = place_text(call.site or "", width)
    cells: list[Span] = [(call_text(call), ""), (state, style), (site, "dim")]
    if width >= WIDE:
        cells.insert(0, (_clock(call.time_ns), "dim"))
    return cells


def _called(columns: list[Column], rows: list[list[Span]], width: int) -> list[Line]:
    if width >= WIDE:
        columns.append(Column("posted", least=12))
    columns += [
        Column("", most=80 if width >= WIDE else 32),
        Column("", least=9),
        Column("from", fills=True),
    ]
    heading, lines = table(columns, rows, width)
    return [heading, *lines]


def _clock(time_ns: int | None) -> str:
    if not time_ns:
        return ""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    try:
        return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{rest // 1_000_000:03}"
    except (OSError, OverflowError, ValueError):
        return ""  # a damaged time


def event_lines(events: Sequence[Event], width: int, *, wrapped: bool = False) -> list[Line]:
    """Return the lines of a log.

    Args:
        events: Events to show, oldest first.
        width: Width of a line in cells.
        wrapped: Whether to wrap long texts; otherwise they are cropped.
    """
    room = max(width - 10, 10)
    lines: list[Line] = []
    for event in events:
        texts = textwrap.wrap(event.text, room) if wrapped else [cropped(event.text, room)]
        for number, text in enumerate(texts):
            clock = f"{event.clock}  " if not number else " " * 10
            lines.append([(clock, "dim"), (text, event.style)])
    return lines


def help_lines(width: int, *, has_keys: bool) -> list[Line]:
    """Return the meaning of keys and marks, in two columns if ``width`` permits."""
    keys: list[Line] = [[(f"{key:<10}", "bold"), (what, "")] for key, what in _KEYS]
    marks: list[Line] = [[(f"{mark:<7}", style), (what, "")] for mark, (what, style) in _MARKED]
    marks += [[], *([(f"{word:<7}", "bold"), (what, "")] for word, what in _WORDS)]
    above: list[Line] = []
    if not has_keys:
        above.append([("stdin is no terminal: there are no keys, Ctrl-C ends", "yellow")])
    if width < 2 * _HELP_CELLS:
        return [*above, *keys, [], *marks]
    beside: list[Line] = []
    nothing: Line = []
    for left, right in zip_longest(keys, marks, fillvalue=nothing):
        room = _HELP_CELLS - sum(len(text) for text, _ in left)
        beside.append([*left, (" " * room, ""), *right])
    return [*above, *beside]


_HELP_CELLS = 40
_KEYS = (
    ("up down", "pick a rank or communicator"),
    ("k j", "the same"),
    ("digits", "pick the rank of that number"),
    ("n", "pick the next one with a mark"),
    ("tab", "communicators, or ranks"),
    ("enter", "its last calls"),
    ("d", "the divergence or hang"),
    ("l", "the log of events"),
    ("space b", "scroll the lower pane"),
    ("f", "the lower pane alone, or both"),
    ("s", "marked ones first, or in order"),
    ("PgUp PgDn", "a page; g G first, last"),
    ("q", "quit: status 1 in trouble"),
)
_MARKED = [(mark, about) for mark, about in MARKS.items() if mark]
_WORDS = (
    ("lag", "calls behind the farthest peer"),
    ("pending", "posted, not known to be done"),
    ("quiet", "time without any progress"),
)
