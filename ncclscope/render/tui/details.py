"""The lower pane: last calls, the log, what the keys mean."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ncclscope.analysis.wording import call_text, ranks_text
from ncclscope.model import Call, State
from ncclscope.render.tui.events import Event
from ncclscope.render.tui.lists import WIDE
from ncclscope.render.tui.spans import Column, Line, Span, cropped, table
from ncclscope.render.tui.standing import MARKS, CommStanding, RankStanding, comm_label

__all__ = [
    "comm_calls",
    "event_lines",
    "help_lines",
    "rank_calls",
]


def rank_calls(standing: RankStanding, calls: Sequence[Call], width: int) -> list[Line]:
    """Returns the last calls of a rank, under their headings.

    Args:
        standing: The rank.
        calls: Read from its ring, oldest first.
        width: Cells of a line.
    """
    strands = standing.words.strands
    columns = [Column("comm", least=6, most=24), Column("call", right=True, least=6)]
    rows: list[list[Span]] = []
    for call in calls:
        strand = strands.get(call.comm)
        label = comm_label(strand.comm) if strand is not None else "?"
        # What a call of its own says counts, too: others may have been passed over.
        tells = call.state is not State.SCHEDULED or (strand is not None and strand.tells)
        rows.append([(label, ""), (f"#{call.seq}", ""), *_call_cells(call, width, tells=tells)])
    return _called(columns, rows, width)


def comm_calls(standing: CommStanding, calls: Sequence[Call], width: int) -> list[Line]:
    """Returns the last calls on a communicator, and who has posted each."""
    members = {words.rank: words.strands[standing.key].seq for words in standing.members}
    everyone = set(members) | set(standing.comm.ranks)
    tells = standing.tells
    columns = [Column("call", right=True, least=6), Column("missing", most=30)]
    rows: list[list[Span]] = []
    for call in calls:
        absent = [rank for rank in everyone if members.get(rank, 0) < call.seq]
        late = (ranks_text(absent), "yellow") if absent else ("", "")
        rows.append([(f"#{call.seq}", ""), late, *_call_cells(call, width, tells=tells)])
    return _called(columns, rows, width)


def _call_cells(call: Call, width: int, *, tells: bool) -> list[Span]:
    state = call.state.word if tells else ""
    style = "yellow" if tells and call.state is not State.COMPLETED else ""
    site = call.site or ""
    if width < WIDE:  # of a place the name of the file and the line say most
        site = site.rpartition("/")[2]
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
        return ""  # a time that no clock has shown


def event_lines(events: Sequence[Event], width: int) -> list[Line]:
    """Returns a line for each event."""
    return [
        [(f"{event.clock}  ", "dim"), (cropped(event.text, width - 10), event.style)]
        for event in events
    ]


def help_lines(has_keys: bool) -> list[Line]:
    """Returns what keys and marks mean."""
    lines: list[Line] = []
    if not has_keys:
        lines.append([("stdin is no terminal: there are no keys, Ctrl-C ends", "yellow")])
    for keys, meaning in _HELP:
        lines.append([(f"{keys:<18}", "bold"), (meaning, "")])
    lines.append([("", "")])
    for mark, (meaning, style) in MARKS.items():
        if mark:
            lines.append([(f"{mark:<18}", style), (meaning, "")])
    lines += [
        [(f"{'lag':<18}", "bold"), ("calls behind the peer that has come farthest", "")],
        [(f"{'in it':<18}", "bold"), ("the call is posted and not known to have completed", "")],
        [(f"{'quiet':<18}", "bold"), ("how long nothing has happened", "")],
    ]
    return lines


_HELP = (
    ("up down, k j", "pick a rank or a communicator"),
    ("digits", "pick the rank of that number"),
    ("n", "pick the next one with a mark"),
    ("tab, r c", "ranks or communicators above"),
    ("enter", "its last calls below"),
    ("d", "the divergence or hang below"),
    ("l", "the log of events below"),
    ("space b", "scroll the lower pane on, and back"),
    ("f", "the lower pane alone, and back"),
    ("s", "those with a mark first, and back"),
    ("page up/down, g G", "move by a page, to the first, to the last"),
    ("Ctrl-L", "draw all anew"),
    ("q", "end; status 1 in trouble, else 0"),
)
