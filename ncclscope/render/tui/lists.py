"""Upper pane: a line for each rank or communicator."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model.ties import grouped
from ncclscope.render.console.blocks import duration
from ncclscope.render.tui.entries import CommEntry, RankEntry, comm_label, last_text
from ncclscope.render.tui.marks import MARKS
from ncclscope.render.tui.spans import Column, Line, Span, table
from ncclscope.wording.names import ranks_text

WIDE = 110
"""Width in cells from which additional columns are shown."""
_COMM_CELLS = 13
_CALL_CELLS = 36
"""Most cells of a call on a wide terminal, so that the next column stays near."""
_MINUS = "\N{MINUS SIGN}"
_QUIET_SHOWN = 1.0
"""Seconds without progress from which they are shown."""


def rank_lines(entries: Sequence[RankEntry], picked: int, width: int) -> tuple[Line, list[Line]]:
    """Return the headings, and a line for each rank.

    Args:
        entries: Ranks to show.
        picked: Index of the picked one.
        width: Width of a line in cells.
    """
    is_wide = width >= WIDE
    hosts = {entry.cursor.host for entry in entries}
    labels = _labels(entries)[: max(0, (width - 126) // _COMM_CELLS)] if is_wide else []
    columns = [Column(" "), Column("rank", right=True, least=4)]
    if is_wide:
        columns.append(Column("is"))
    if is_wide and len(hosts) > 1:
        columns.append(Column("host", most=16))
    columns += [
        Column("pid", right=True, least=7),
        Column("comm", least=6, most=28 if is_wide else 14),
        Column("call", right=True, least=7),
        Column("lag", right=True, least=5),
        Column("last call", least=20, most=_CALL_CELLS if is_wide else 1000, fills=True),
        Column("", least=7),
        Column("quiet", right=True, least=7),
    ]
    columns += [Column(label, right=True, least=_COMM_CELLS - 2, most=24) for label in labels]
    rows: list[list[Span]] = []
    for entry in entries:
        cursor, style = entry.cursor, MARKS[entry.mark][1]
        on_comm = cursor.comm_cursors.get(entry.key)
        cells = [entry.mark, entry.name]
        if is_wide:
            cells.append(entry.labels)
        if is_wide and len(hosts) > 1:
            cells.append(cursor.host)
        cells += [
            str(cursor.pid or ""),
            comm_label(on_comm.comm) if on_comm is not None else "",
            str(on_comm.seq) if on_comm is not None else "",
            f"{_MINUS}{entry.lag}" if entry.lag else "",
            last_text(entry.last) or "no calls",
            "pending" if entry.is_pending and not cursor.over else "",
            _quiet(entry),
        ]
        cells += [_on_comm(entry, label) for label in labels]
        rows.append([(text, style) for text in cells])
    return _picked(table(columns, rows, width), picked, width)


def comm_lines(entries: Sequence[CommEntry], picked: int, width: int) -> tuple[Line, list[Line]]:
    """Return the headings, and a line for each communicator.

    Args:
        entries: Communicators to show.
        picked: Index of the picked one.
        width: Width of a line in cells.
    """
    is_wide = width >= WIDE
    columns = [
        Column(" "),
        Column("comm", least=6, most=32 if is_wide else 16),
        Column("ranks", most=40 if is_wide else 13),
        Column("call", right=True, least=7),
        Column("last call", least=18, most=_CALL_CELLS if is_wide else 1000, fills=True),
        Column("pending", most=24 if is_wide else 7),
        Column("behind", most=40 if is_wide else 12),
        Column("quiet", right=True, least=6),
    ]
    if is_wide:
        columns.insert(3, Column("backend"))
    rows: list[list[Span]] = []
    for entry in entries:
        style, comm = MARKS[entry.mark][1], entry.comm
        cells = [
            entry.mark,
            comm_label(comm),
            _numbers(comm.ranks),
            str(entry.calls),
            last_text(entry.leader.last(comm.key)),
            _part(entry.pending, len(comm.ranks), is_wide=is_wide),
            _behind(entry),
            duration(entry.quiet) if entry.quiet >= _QUIET_SHOWN else "",
        ]
        if is_wide:
            cells.insert(3, comm.backend)
        rows.append([(text, style) for text in cells])
    return _picked(table(columns, rows, width), picked, width)


def place_text(site: str, width: int) -> str:
    """Return a call site, without its folders if ``width`` is less than ``WIDE`` cells."""
    return site if width >= WIDE else site.rpartition("/")[2]


def _picked(laid: tuple[Line, list[Line]], picked: int, width: int) -> tuple[Line, list[Line]]:
    heading, lines = laid
    if 0 <= picked < len(lines):
        lines[picked] = [(text, f"{style} reverse".strip()) for text, style in lines[picked]]
        lines[picked].append((" " * width, "reverse"))
    return heading, lines


def _labels(entries: Sequence[RankEntry]) -> list[str]:
    found: dict[str, int] = {}
    for entry in entries:
        for on_comm in entry.cursor.comm_cursors.values():
            if on_comm.seq:
                label = comm_label(on_comm.comm)
                found[label] = max(found.get(label, 0), on_comm.seq)
    return sorted(sorted(found, key=lambda label: -found[label])[:12])


def _on_comm(entry: RankEntry, label: str) -> str:
    """Return calls and lag of a rank on each communicator with this label, usually one."""
    parts = []
    for key, on_comm in entry.cursor.comm_cursors.items():
        if on_comm.seq and comm_label(on_comm.comm) == label:
            lag = entry.lags.get(key)
            parts.append(f"{on_comm.seq}{f' {_MINUS}{lag}' if lag else ''}")
    return ", ".join(parts)


def _quiet(entry: RankEntry) -> str:
    if entry.cursor.over:
        return "ended"
    return duration(entry.quiet) if entry.quiet >= _QUIET_SHOWN else ""


def _numbers(ranks: Sequence[int]) -> str:
    return ranks_text(ranks).partition(" ")[2] if ranks else ""


def _part(ranks: Sequence[int], members: int, *, is_wide: bool) -> str:
    if not ranks:
        return ""
    count = f"{len(ranks)} of {max(members, len(ranks))}"
    return f"{count}: {_numbers(ranks)}" if is_wide and len(ranks) < members else count


def _behind(entry: CommEntry) -> str:
    """Return the ranks that are behind with their lag in calls, the farthest behind first."""
    by_lag = grouped(entry.lags, lambda rank: entry.lags[rank])
    return ", ".join(f"{_numbers(by_lag[lag])} {_MINUS}{lag}" for lag in sorted(by_lag)[::-1])
