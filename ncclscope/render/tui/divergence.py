"""Pane of a divergence or hang: summary, calls side by side, and evidence."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from ncclscope.engine.verdict import Neighbourhood, Verdict
from ncclscope.model import Call, Finding
from ncclscope.render.console.blocks import knowledge, who_text
from ncclscope.render.console.sides import aligned_sides, differ_by_site, shown_groups
from ncclscope.render.tui.lists import WIDE, place_text
from ncclscope.render.tui.spans import Column, Line, Span, drawn, table
from ncclscope.untrusted import printable
from ncclscope.wording.names import call_text, comm_text, ranks_text

_NARROW_GROUPS, _WIDE_GROUPS = 2, 4
"""Groups of ranks shown side by side."""
_ABSENT = "-"


def divergence_lines(verdict: Verdict | None, note: str, width: int) -> list[Line]:
    """Return the lines of the pane.

    Args:
        verdict: Verdict to show; None if there is none.
        note: Origin of the verdict, or the text to show without one.
        width: Width of a line in cells.
    """
    cause = verdict.cause if verdict is not None else None
    if verdict is None or cause is None:
        return drawn(Text(note, style="dim"), width)
    sure = (cause.confidence, cause.kind.replace("_", " "), who_text(verdict.causes), note)
    lines = drawn(Text(verdict.summary, style="bold"), width)
    lines += drawn(Text(" · ".join(filter(None, sure)), style="red"), width)
    if verdict.neighbourhood is not None:
        lines += [[], *_side_by_side(_sides(verdict.neighbourhood, cause, width), cause, width)]
    return lines + drawn(knowledge(cause), width)


@dataclass(frozen=True)
class _Sides:
    """Sequences side by side.

    Attributes:
        names: Headings of the columns, such as ``ranks 0-2``.
        rows: By row, the call of each column, or None.
        hidden: Ranks without a column.
        is_aligned: Whether a row holds matching calls; otherwise it holds equal numbers.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Call | None, ...], ...]
    hidden: tuple[int, ...] = ()
    is_aligned: bool = False


def _sides(near: Neighbourhood, cause: Finding, width: int) -> _Sides:
    if (sides := aligned_sides(near, cause)) is not None:
        return _Sides(tuple(map(ranks_text, sides)), tuple(cause.aligned), is_aligned=True)
    most = _WIDE_GROUPS if width >= WIDE else _NARROW_GROUPS
    shown, hidden = shown_groups(near, cause, most)
    seqs = sorted({seq for calls in near.calls.values() for seq in calls})
    rows = tuple(tuple(near.calls[ranks[0]].get(seq) for ranks in shown) for seq in seqs)
    return _Sides(tuple(map(ranks_text, shown)), rows, tuple(hidden))


def _side_by_side(sides: _Sides, cause: Finding, width: int) -> list[Line]:
    assert cause.comm is not None
    cells = (width - 2) // max(1, len(sides.names)) - 2
    columns = [Column(" ")]
    columns += [Column(name, least=cells, most=cells) for name in sides.names]
    by_site = differ_by_site(cause)
    rows: list[list[Span]] = []
    for calls in sides.rows:
        here = any(call is not None and call.seq == cause.seq for call in calls)
        differs = len({call and call.signature for call in calls}) > 1
        style = "red" if differs else ""
        mark = ">" if here and (differs or not sides.is_aligned) else ""
        sites = [_site(call, width) for call in calls]
        # Calls that differ in their sites alone are shown with them.
        is_elsewhere = by_site and len(set(sites)) > 1
        shows_sites = bool(mark) or is_elsewhere
        rows.append([(mark, "bold red"), *((_text(call), style) for call in calls)])
        if shows_sites and any(sites):
            rows.append([("", ""), *((f"  at {site}" if site else "", "dim") for site in sites)])
    heading, lines = table(columns, rows, width)
    about: Line = [("on ", "dim"), (printable(comm_text(cause.comm)), "")]
    if sides.hidden:
        lines.append([(f"  not shown: {ranks_text(sides.hidden)}", "dim")])
    return [about, heading, *lines]


def _site(call: Call | None, width: int) -> str | None:
    return None if call is None or call.site is None else place_text(call.site, width)


def _text(call: Call | None) -> str:
    return _ABSENT if call is None else f"#{call.seq} {call_text(call)}"
