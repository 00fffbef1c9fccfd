"""Lines of a screen: pieces of text, each with a style, and tables made of them.

A table here is laid out again several times a second for as long as somebody leaves it open,
which is why it does without rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.style import Style as RichStyle

from ncclscope.untrusted import printable

__all__ = ["Column", "Line", "Span", "aligned_right", "cropped", "drawn", "rule", "table", "width"]

Span = tuple[str, str]
"""A text and its style, which are words such as ``bold red`` that the painter knows."""
Line = list[Span]

_LEAST_FILLED = 8
_COLOURS = ("red", "green", "yellow")


@dataclass(frozen=True)
class Column:
    """How a column is laid out.

    Attributes:
        heading: What stands above it.
        right: Whether it is aligned to the right.
        least: Cells that it takes at least, so that it does not jump as numbers grow.
        most: Cells that it takes at most; what is longer is cropped.
        fills: Whether it takes what the others leave, up to ``most``, and gives way first.
    """

    heading: str
    right: bool = False
    least: int = 0
    most: int = 1000
    fills: bool = False


def width(line: Iterable[Span]) -> int:
    """Returns the cells that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def cropped(text: str, most: int) -> str:
    """Returns a text that takes no more cells, with a mark where something is left out."""
    if cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1) + "…" if most > 1 else "…"[:most]


def aligned_right(left: Line, right: Line, most: int) -> Line:
    """Returns a line with some of it at its right end; where there is no room, that is left out."""
    free = most - width(left) - width(right)
    return [*left, (" " * free, ""), *right] if free > 0 else left


def rule(title: Line, most: int, right: str = "") -> Line:
    """Returns the line above a pane, with its title in it."""
    line: Line = [("── ", "dim"), *title, (" ", "")]
    end = f" {right} ──" if right else ""
    free = most - width(line) - cell_len(end)
    if free < 0:
        end, free = "", max(0, most - width(line))
    return [*line, ("─" * free + end, "dim")]


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Span]], most: int
) -> tuple[Line, list[Line]]:
    """Lays out a table.

    Args:
        columns: Its columns.
        rows: A span for each column; foreign texts may be in them.
        most: Cells of a line.

    Returns:
        The line with the headings, and the others.
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
    """Returns what rich makes of a screen, in lines of so many cells."""
    console = Console(width=max(most, 20), color_system="standard", force_terminal=True)
    options = console.options.update(highlight=False, markup=False)
    lines: list[Line] = []
    for segments in console.render_lines(screen, options, pad=False):
        # What rich would write as it is, an escape sequence in a file's name for one.
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
