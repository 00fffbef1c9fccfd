"""Table of a watched job."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ncclscope.model import State
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.render.console.blocks import (
    COLOURS,
    cause_panel,
    plain_table,
    right,
    status_panel,
    unwrapped,
)
from ncclscope.render.tui.entries import comm_label, last_text
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll
from ncclscope.wording.names import plural, ranks_text

_NAME_COLUMNS, _COMM_COLUMNS = 24, 44
"""Terminal columns that a rank and each of its communicators take in one row."""
_OTHER_LINES = 10
"""Lines above and below the ranks."""
_QUIET_SHOWN = 1.0
"""Seconds without progress from which they are shown."""


def render_poll(poll: Poll, width: int, height: int = 10_000, source: str = "") -> RenderableType:
    """Return the screen of a sample.

    Args:
        poll: Sample of the job.
        width: Width of the terminal in columns.
        height: Height of the terminal in lines.
        source: Directory of the rings, to show.
    """
    parts: list[RenderableType] = [_heading(poll, source)]
    if poll.in_trouble:
        parts.append(
            cause_panel(poll.status, poll.verdict.summary, poll.verdict.causes)
            if poll.verdict is not None and poll.cause is not None
            else status_panel(poll.status, poll.status)
        )
    if poll.ranks:
        labels = sorted({label for cursor in poll.ranks for label, _ in _named(cursor)})
        is_wide = _NAME_COLUMNS + _COMM_COLUMNS * len(labels) <= width
        most = max(4, (height - _OTHER_LINES) // (1 if is_wide else max(1, len(labels))))
        shown = _most_relevant(poll, most)
        parts.append(_wide(poll, shown, labels) if is_wide else _narrow(poll, shown))
        if len(shown) < len(poll.ranks):
            hidden = len(poll.ranks) - len(shown)
            parts.append(Text(f" and {plural(hidden, 'rank')} more", style="dim"))
    if poll.in_trouble and source:
        parts.append(Text(f" ncclscope diagnose {source}", style="dim"))
    return Group(*parts)


def one_line(poll: Poll) -> str:
    """Return the status as one line, for a log."""
    if poll.verdict is not None and poll.verdict.cause is not None:
        return f"{poll.status}: {printable(poll.verdict.summary)}"
    return f"{poll.status}: {plural(len(poll.ranks), 'rank')}, {poll.activity}"


def _heading(poll: Poll, source: str) -> Text:
    text = Text()
    text.append(f"{poll.word} ", style=f"bold {COLOURS[poll.status]}")
    run = poll.verdict.run if poll.verdict is not None else None
    parts = []
    if poll.activity == "waiting":
        parts.append("for a ring to appear")
    elif run is not None:
        parts.append(f"{len(run.ranks)} of {plural(run.expected, 'rank')}")
        if run.missing and not poll.in_trouble:
            gone = [number for number in run.missing if number not in run.unrecorded]
            parts += [f"{ranks_text(gone)} not here"] if gone else []
            unrecorded = run.unrecorded.intersection(run.missing)
            parts += [f"{ranks_text(unrecorded)} not recorded"] if unrecorded else []
        if poll.activity != "over" and poll.status != "hung":
            parts.append(poll.activity)
    text.append(", ".join(parts))
    if source:
        text.append(f"  {printable(source)}", style="dim")
    return text


def _most_relevant(poll: Poll, most: int) -> list[RingCursor]:
    """Return at most ``most`` ranks in order, preferring those that diverge, lag or are quiet."""
    if len(poll.ranks) <= most:
        return list(poll.ranks)
    heads = poll.farthest()
    cause = poll.cause
    named = () if cause is None else (*cause.diverging_ranks, *cause.candidate_ranks)

    def weight(cursor: RingCursor) -> tuple[bool, int, float]:
        lag = sum(heads[key] - on_comm.seq for key, on_comm in cursor.comm_cursors.items())
        return cursor.rank not in named, -lag, cursor.moved_at

    chosen = {cursor.path for cursor in sorted(poll.ranks, key=weight)[:most]}
    return [cursor for cursor in poll.ranks if cursor.path in chosen]


def _wide(poll: Poll, shown: Sequence[RingCursor], labels: Sequence[str]) -> Table:
    columns = [right("rank"), right("pid")]
    for label in labels:
        columns += [right(label), right("lag", least=4), unwrapped("last call")]
    table = plain_table(*columns, right("quiet"))
    heads = poll.farthest()
    for cursor in shown:
        cells = dict(_named(cursor))
        row = [_rank(cursor), str(cursor.pid or "")]
        for label in labels:
            key = cells.get(label)
            row += ["", "", ""] if key is None else _cell(cursor, key, heads)
        row.append(_quiet(poll, cursor))
        table.add_row(*map(Text, row), style=_style(poll, cursor))
    return table


def _narrow(poll: Poll, shown: Sequence[RingCursor]) -> Table:
    last_call = Column("last call", no_wrap=True, ratio=1)
    columns = [right("rank"), right("pid"), unwrapped("comm"), right("calls")]
    table = plain_table(*columns, right("lag", least=4), last_call, right("quiet"))
    heads = poll.farthest()
    for cursor in shown:
        style = _style(poll, cursor)
        name = [_rank(cursor), str(cursor.pid or "")]
        quiet = _quiet(poll, cursor)
        for label, key in _named(cursor):
            row = [*name, label, *_cell(cursor, key, heads), quiet]
            table.add_row(*map(Text, row), style=style)
            name, quiet = ["", ""], ""
        if name[1]:
            table.add_row(*map(Text, [*name, "", "", "", "no calls", quiet]), style=style)
    return table


def _named(cursor: RingCursor) -> list[tuple[str, str]]:
    """Return names and keys of the communicators that a process has used, by name."""
    found: dict[str, str] = {}
    for key, on_comm in cursor.comm_cursors.items():
        if not (on_comm.seq or on_comm.p2p):
            continue
        label = comm_label(on_comm.comm)
        number, free = 2, label
        while free in found:
            free, number = f"{label} #{number}", number + 1
        found[free] = key
    return sorted(found.items())


def _cell(cursor: RingCursor, key: str, heads: dict[str, int]) -> list[str]:
    on_comm = cursor.comm_cursors[key]
    lag = heads[key] - on_comm.seq
    behind = f"\N{MINUS SIGN}{lag}" if lag else ""
    last = cursor.last(key)
    text = last_text(last)
    if last is not None and on_comm.tells and last.state is not State.COMPLETED:
        text += " pending"
    return [str(on_comm.seq), behind, text]


def _quiet(poll: Poll, cursor: RingCursor) -> str:
    if cursor.over:
        return "ended"
    seconds = poll.now - cursor.moved_at
    return f"{seconds:.0f} s" if seconds >= _QUIET_SHOWN else ""


def _style(poll: Poll, cursor: RingCursor) -> str:
    if poll.cause is not None and cursor.rank in poll.cause.diverging_ranks:
        return "bold red"
    return "dim" if cursor.over else ""


def _rank(cursor: RingCursor) -> str:
    return str(cursor.rank) if cursor.rank >= 0 else "-"
