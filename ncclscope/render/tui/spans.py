"""Lines of styled text, and tables of them.

The live view lays out its tables several times a second, for hours: hence without rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.style import Style as RichStyle

from ncclscope.untrusted import printable

Span = tuple[str, str]
"""A text and its style, words such as ``bold red`` that :mod:`.painter` knows."""
Line = list[Span]
"""Spans of one line, from left to right."""

_LEAST_FILLED = 8
_COLOURS = ("red", "green", "yellow")


@dataclass(frozen=True)
class Column:
    """Layout of a column.

    Attributes:
        heading: Text above it.
        right: Whether it is aligned to the right.
        least: Least width in cells, so that the column does not jump as numbers grow.
        most: Most width in cells; longer texts are cropped.
        fills: Whether it takes the remaining width, up to ``most``, and shrinks first.
    """

    heading: str
    right: bool = False
    least: int = 0
    most: int = 1000
    fills: bool = False


def width(line: Iterable[Span]) -> int:
    """Return the width of a line in cells."""
    return sum(cell_len(text) for text, _ in line)


def cropped(text: str, most: int) -> str:
    """Return ``text`` cropped to at most ``most`` cells, with an ellipsis if it was longer."""
    if cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1) + "…" if most > 1 else "…"[:most]


def aligned_right(left: Line, right: Line, most: int) -> Line:
    """Return a line of ``most`` cells with ``right`` at its end; only ``left`` if it is too long.

    Args:
        left: Spans at the beginning.
        right: Spans at the end.
        most: Width of the line in cells.
    """
    free = most - width(left) - width(right)
    return [*left, (" " * free, ""), *right] if free > 0 else left


def rule(title: Line, most: int, right: str = "") -> Line:
    """Return the rule above a pane.

    Args:
        title: Title at its beginning.
        most: Width of the rule in cells.
        right: Text at its end.
    """
    line: Line = [("── ", "dim"), *title, (" ", "")]
    end = f" {right} ──" if right else ""
    free = most - width(line) - cell_len(end)
    if free < 0:
        end, free = "", max(0, most - width(line))
    return [*line, ("─" * free + end, "dim")]


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Span]], most: int
) -> tuple[Line, list[Line]]:
    """Lay out a table.

    Args:
        columns: Columns of the table.
        rows: By row, a span for each column; control characters are escaped.
        most: Width of a line in cells.

    Returns:
        The line of headings, and the lines of the rows.
    """
    clean = [[(printable(text), style) for text, style in row] for row in rows]
    widths = [
        min(
            column.most,
            max(
                column.least,
                cell_len(column.heading),
                *(cell_len(row[place][0]) for row in clean),
                0,
            ),
        )
        for place, column in enumerate(columns)
    ]
    over = sum(widths) + 2 * (len(columns) - 1) - most
    for place, column in enumerate(columns):
        if column.fills:
            widths[place] = min(column.most, max(_LEAST_FILLED, widths[place] - over))
            break
    heading = _row([(column.heading, "dim") for column in columns], columns, widths)
    return heading, [_row(row, columns, widths) for row in clean]


def _row(row: Sequence[Span], columns: Sequence[Column], widths: Sequence[int]) -> Line:
    line: Line = []
    for (text, style), column, cells in zip(row, columns, widths, strict=True):
        if line:
            line.append(("  ", style if style == line[-1][1] else ""))
        shown = cropped(text, cells)
        pad = " " * (cells - cell_len(shown))
        line.append((pad + shown if column.right else shown + pad, style))
    return line


def drawn(screen: RenderableType, most: int) -> list[Line]:
    """Return a rich renderable as lines of ``most`` cells."""
    console = Console(width=max(most, 20), color_system="standard", force_terminal=True)
    options = console.options.update(highlight=False, markup=False)
    lines: list[Line] = []
    for segments in console.render_lines(screen, options, pad=False):
        # Escape control characters, which rich would pass on.
        line = [
            (printable(text), _style(style)) for text, style, control in segments if not control
        ]
        lines.append(line)
    return lines


def _style(style: RichStyle | None) -> str:
    if style is None:
        return ""
    words = [word for word in ("bold", "dim", "italic") if getattr(style, word)]
    if style.color is not None and style.color.name in _COLOURS:
        words.append(style.color.name)
    return " ".join(words)
