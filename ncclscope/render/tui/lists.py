"""The upper pane: ranks, or communicators, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.analysis.wording import ranks_text, shape_text
from ncclscope.readers.ring.cursor import LastCall
from ncclscope.render.console.blocks import duration
from ncclscope.render.tui.progress import MARKS, CommStanding, RankStanding, comm_label
from ncclscope.render.tui.spans import Column, Line, Span, table
from ncclscope.untrusted import printable

__all__ = ["WIDE", "comm_lines", "place_text", "rank_lines"]

WIDE = 110
"""Cells from which there is room for more than the most important."""
_COMM_CELLS = 13
_CALL_CELLS = 36
"""Where there is more room, what stands behind a call is not to be far away from it."""
_MINUS = "\N{MINUS SIGN}"
_CALM = 1.0


def rank_lines(
    standings: Sequence[RankStanding], picked: int, width: int
) -> tuple[Line, list[Line]]:
    """Returns the headings, and a line for each rank.

    Args:
        standings: The ranks to show.
        picked: Place of the one that is picked.
        width: Cells of a line.
    """
    is_wide = width >= WIDE
    hosts = {standing.cursor.host for standing in standings}
    labels = _labels(standings)[: max(0, (width - 126) // _COMM_CELLS)] if is_wide else []
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
        Column("", least=5),
        Column("quiet", right=True, least=7),
    ]
    columns += [Column(label, right=True, least=_COMM_CELLS - 2, most=24) for label in labels]
    rows: list[list[Span]] = []
    for standing in standings:
        cursor, style = standing.cursor, MARKS[standing.mark][1]
        comm_cursor = cursor.comm_cursors.get(standing.key)
        cells = [standing.mark, standing.name]
        if is_wide:
            cells.append(standing.labels)
        if is_wide and len(hosts) > 1:
            cells.append(cursor.host)
        cells += [
            str(cursor.pid or ""),
            comm_label(comm_cursor.comm) if comm_cursor is not None else "",
            str(comm_cursor.seq) if comm_cursor is not None else "",
            f"{_MINUS}{standing.lag}" if standing.lag else "",
            _call(standing.last) or "no calls",
            "in it" if standing.is_inside and not cursor.over else "",
            _quiet(standing),
        ]
        cells += [_on_comm(standing, label) for label in labels]
        rows.append([(text, style) for text in cells])
    return _picked(table(columns, rows, width), picked, width)


def comm_lines(
    standings: Sequence[CommStanding], picked: int, width: int
) -> tuple[Line, list[Line]]:
    """Returns the headings, and a line for each communicator; as :func:`rank_lines`."""
    is_wide = width >= WIDE
    columns = [
        Column(" "),
        Column("comm", least=6, most=32 if is_wide else 16),
        Column("ranks", most=40 if is_wide else 13),
        Column("call", right=True, least=7),
        Column("last call", least=18, most=_CALL_CELLS if is_wide else 1000, fills=True),
        Column("in it", most=24 if is_wide else 7),
        Column("behind", most=40 if is_wide else 12),
        Column("quiet", right=True, least=6),
    ]
    if is_wide:
        columns.insert(3, Column("backend"))
    rows: list[list[Span]] = []
    for standing in standings:
        style, comm = MARKS[standing.mark][1], standing.comm
        cells = [
            standing.mark,
            comm_label(comm),
            _numbers(comm.ranks),
            str(standing.calls),
            _call(standing.leader.last(comm.key)),
            _part(standing.inside, len(comm.ranks), is_wide=is_wide),
            _behind(standing),
            duration(standing.quiet) if standing.quiet >= _CALM else "",
        ]
        if is_wide:
            cells.insert(3, comm.backend)
        rows.append([(text, style) for text in cells])
    return _picked(table(columns, rows, width), picked, width)


def place_text(site: str, width: int) -> str:
    """Returns a place in a program; where there is little room, without its folders."""
    return site if width >= WIDE else site.rpartition("/")[2]


def _picked(laid: tuple[Line, list[Line]], picked: int, width: int) -> tuple[Line, list[Line]]:
    heading, lines = laid
    if 0 <= picked < len(lines):
        lines[picked] = [(text, f"{style} reverse".strip()) for text, style in lines[picked]]
        lines[picked].append((" " * width, "reverse"))
    return heading, lines


def _labels(standings: Sequence[RankStanding]) -> list[str]:
    found: dict[str, int] = {}
    for standing in standings:
        for comm_cursor in standing.cursor.comm_cursors.values():
            if comm_cursor.seq:
                label = comm_label(comm_cursor.comm)
                found[label] = max(found.get(label, 0), comm_cursor.seq)
    return sorted(sorted(found, key=lambda label: -found[label])[:12])


def _on_comm(standing: RankStanding, label: str) -> str:
    """How far a rank is on the communicators of a name, of which it is seldom in more than one."""
    parts = []
    for key, comm_cursor in standing.cursor.comm_cursors.items():
        if comm_cursor.seq and comm_label(comm_cursor.comm) == label:
            lag = standing.lags.get(key)
            parts.append(f"{comm_cursor.seq}{f' {_MINUS}{lag}' if lag else ''}")
    return ", ".join(parts)


def _call(last: LastCall | None) -> str:
    if last is None:
        return ""
    return " ".join(part for part in (printable(last.op), shape_text(last.shape)) if part)


def _quiet(standing: RankStanding) -> str:
    if standing.cursor.over:
        return "ended"
    return duration(standing.quiet) if standing.quiet >= _CALM else ""


def _numbers(ranks: Sequence[int]) -> str:
    return ranks_text(ranks).partition(" ")[2] if ranks else ""


def _part(ranks: Sequence[int], members: int, *, is_wide: bool) -> str:
    if not ranks:
        return ""
    count = f"{len(ranks)} of {max(members, len(ranks))}"
    return f"{count}: {_numbers(ranks)}" if is_wide and len(ranks) < members else count


def _behind(standing: CommStanding) -> str:
    """Who is behind, the farthest first."""
    by_lag: dict[int, list[int]] = {}
    for rank, lag in standing.lags.items():
        by_lag.setdefault(lag, []).append(rank)
    return ", ".join(f"{_numbers(by_lag[lag])} {_MINUS}{lag}" for lag in sorted(by_lag)[::-1])
