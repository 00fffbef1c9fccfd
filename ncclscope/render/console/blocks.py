"""What the screens of the commands are put together from."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ncclscope.analysis.coverage import Coverage
from ncclscope.analysis.wording import comm_text, ranks_text
from ncclscope.model import Finding
from ncclscope.untrusted import printable

__all__ = [
    "COLOURS",
    "WORDS",
    "add_row",
    "cause_panel",
    "coverage_block",
    "duration",
    "item",
    "knowledge",
    "plain_table",
    "section",
    "status_panel",
]

COLOURS = {
    "ok": "green",
    "incomplete": "yellow",
    "unknown": "yellow",
    "diverged": "red",
    "hung": "red",
}
WORDS = {
    "ok": "OK",
    "incomplete": "INCOMPLETE",
    "unknown": "UNKNOWN",
    "diverged": "DIVERGED",
    "hung": "HUNG",
}

_UNSEEN_SHOWN = 6


def status_panel(status: str, text: str) -> Panel:
    """A frame about a job of which nothing in particular is to be said."""
    colour = COLOURS[status]
    title = Text(f" {WORDS[status]} ", style=f"bold {colour}")
    return Panel(Text(text), title=title, title_align="left", border_style=colour)


def cause_panel(status: str, cause: Finding, more: str = "") -> Panel:
    """A frame with the cause, whom it concerns, and how sure it is.

    Args:
        status: Of the verdict.
        cause: Its cause.
        more: What stands beside the confidence.
    """
    colour = COLOURS[status]
    who = cause.diverging_ranks or cause.candidate_ranks
    title = Text(f" {WORDS[status]} ", style=f"bold {colour}")
    title.append(f"· {cause.kind.replace('_', ' ')} ")
    title.append(f"· {'' if cause.diverging_ranks else 'one of '}{ranks_text(who)} ")
    return Panel(
        Text(printable(cause.summary)),
        title=title,
        title_align="left",
        subtitle=f" {' · '.join(filter(None, (cause.confidence, more)))} ",
        subtitle_align="right",
        border_style=colour,
    )


def knowledge(cause: Finding, how: str = "recorded") -> RenderableType:
    """Evidence and what is inferred from it; ``how`` says what the evidence is."""
    parts: list[RenderableType] = [section("how it is known", how)]
    parts += [item(line) for line in cause.evidence]
    if cause.inferred:
        parts.append(section("what follows from it", f"inferred, not {how}"))
        parts += [item(line) for line in cause.inferred]
    return Group(*parts)


def coverage_block(coverage: Coverage) -> list[RenderableType]:
    """Return what is not recorded, and communicators whose calls were counted elsewhere, too."""
    lines = [item(printable(text)) for text in coverage.unseen[:_UNSEEN_SHOWN]]
    if (more := len(coverage.unseen) - _UNSEEN_SHOWN) > 0:
        lines.append(item(f"and {more} more, see --json"))
    differing = [one for one in coverage.comms if one.counted != one.recorded]
    lines += [
        item(f"{comm_text(one.comm)}: {one.recorded} recorded, {one.counted} counted by {one.by}")
        for one in differing
    ]
    return [section("not recorded"), *lines] if lines else []


def section(title: str, knowledge: str = "") -> RenderableType:
    """A heading, and at its right how what follows is known."""
    heading = Text(f"\n{title.upper()}", style="bold")
    if not knowledge:
        return heading
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_row(heading, Text(f"\n{knowledge}", style="italic dim"))
    return grid


def item(text: str) -> Table:
    """A line of a list."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column()
    grid.add_row("-", Text(text))
    return grid


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Adds cells as they are: file and function names are foreign text, and no markup."""
    table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=True, padding=(0, 1), header_style="dim")


def duration(seconds: float) -> str:
    """A time for a person, from seconds to hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"
