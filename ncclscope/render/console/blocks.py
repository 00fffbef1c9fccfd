"""Building blocks of the screens: panels, sections, tables and lists."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from ncclscope.engine.coverage import Coverage
from ncclscope.model import Finding
from ncclscope.untrusted import printable
from ncclscope.wording.names import ranks_text

COLOURS = {
    "ok": "green",
    "incomplete": "yellow",
    "unknown": "yellow",
    "diverged": "red",
    "hung": "red",
}

_UNSEEN_SHOWN = 6
"""Lines about missing records; the rest is in ``--json``."""


def status_panel(status: str, text: str) -> Panel:
    """Return a panel with the status and a text, for a job without a finding."""
    colour = COLOURS[status]
    title = Text(f" {status.upper()} ", style=f"bold {colour}")
    return Panel(Text(text), title=title, title_align="left", border_style=colour)


def cause_panel(status: str, summary: str, causes: Sequence[Finding], more: str = "") -> Panel:
    """Return a panel with the causes, their ranks and the confidence of the first.

    Args:
        status: Status of the verdict.
        summary: What the verdict says.
        causes: Causes of the verdict, one at least.
        more: Text to show beside the confidence.
    """
    panel, cause = status_panel(status, printable(summary)), causes[0]
    assert isinstance(panel.title, Text)
    panel.title.append(f"· {cause.kind.replace('_', ' ')} ")
    if who := who_text(causes):
        panel.title.append(f"· {who} ")
    panel.subtitle = f" {' · '.join(filter(None, (cause.confidence, more)))} "
    panel.subtitle_align = "right"
    return panel


def who_text(causes: Sequence[Finding]) -> str:
    """Return ``ranks 1 3`` or ``one of ranks 2 3``; empty where the records single out nobody."""
    if causes[0].diverging_ranks:
        return ranks_text(sorted({rank for one in causes for rank in one.diverging_ranks}))
    who = causes[0].candidate_ranks
    return f"one of {ranks_text(who)}" if who else ""


def knowledge(cause: Finding, how: str = "recorded") -> RenderableType:
    """Return the evidence and the conclusions from it.

    ``how`` is the kind of evidence: ``recorded`` or ``seen``.
    """
    parts: list[RenderableType] = [section("evidence", how)]
    parts += [item(line) for line in cause.evidence]
    if cause.inferred:
        parts.append(section("conclusions", f"inferred, not {how}"))
        parts += [item(line) for line in cause.inferred]
    return Group(*parts)


def coverage_block(coverage: Coverage) -> list[RenderableType]:
    """Return what the records miss."""
    lines = [item(printable(text)) for text in coverage.unseen[:_UNSEEN_SHOWN]]
    if (more := len(coverage.unseen) - _UNSEEN_SHOWN) > 0:
        lines.append(item(f"and {more} more, see --json"))
    return [section("not recorded"), *lines] if lines else []


def section(title: str, knowledge: str = "") -> RenderableType:
    """Return a heading, with the kind of knowledge (``recorded``, ``inferred``) at its right."""
    heading = Text(f"\n{title.upper()}", style="bold")
    if not knowledge:
        return heading
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_row(heading, Text(f"\n{knowledge}", style="italic dim"))
    return grid


def item(text: str) -> Table:
    """Return a list item."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column()
    grid.add_row("-", Text(text))
    return grid


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of literal texts: names of files and functions may look like markup.

    Args:
        table: The table.
        cells: A text for each column.
        style: Style of the whole row, as rich spells it.
    """
    table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)


def plain_table(*columns: Column, headings: bool = True) -> Table:
    """Return a table without lines; with or without ``headings`` above its columns."""
    return Table(*columns, box=None, show_header=headings, padding=(0, 1), header_style="dim")


def right(heading: str = "", *, least: int | None = None) -> Column:
    """Return a column aligned to the right, on one line; ``least`` is its width in cells."""
    return Column(heading, justify="right", no_wrap=True, min_width=least)


def unwrapped(heading: str = "") -> Column:
    """Return a column of texts that stay on one line."""
    return Column(heading, no_wrap=True)


def wrapped(heading: str = "", *, ratio: int | None = None) -> Column:
    """Return a column of long texts; ``ratio`` is its share of the remaining width."""
    return Column(heading, overflow="fold", ratio=ratio)


def duration(seconds: float) -> str:
    """Return ``seconds`` as text, such as ``13 s``, ``2m 05s`` or ``3h 07m``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"
