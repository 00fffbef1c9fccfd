"""Turns a picture into the bytes that make a terminal show it: only what has changed.

A line over which a terminal is far away is slow, and a screen that is cleared and drawn again
flickers. So the painter remembers what the terminal shows, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size

from ncclscope.render.tui.spans import Line

__all__ = ["Painter"]

Cell = tuple[str, str]
"""What one cell shows and its style; the second cell of a wide letter shows nothing."""

_BLANK: Cell = (" ", "")
_CODES = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
}
_COLOURS = frozenset({"red", "green", "yellow"})
_PLAIN_LETTERS = str.maketrans("─·…−↑↓×–", "--.-^vx-")
"""For terminals whose encoding has no others."""
_NEAR = 8
"""Equal cells that are quicker written again than passed over."""
_MOST_COMBINED = 4
"""Letters that share a cell: a name may have thousands of accents."""


class Painter:
    """Remembers what a terminal shows.

    Args:
        encoding: What the terminal takes.
        colour: Whether it is to have colours, too.
    """

    def __init__(self, encoding: str = "utf-8", *, colour: bool = True) -> None:
        self._encoding = encoding
        self._is_plain = not _takes_all(encoding)
        self._colour = colour
        self._shown: list[list[Cell]] = []

    def forget(self) -> None:
        """Takes the terminal for one that shows anything: the next picture is drawn whole."""
        self._shown = []

    def paint(self, lines: Sequence[Line], width: int, height: int) -> bytes:
        """Returns what has to be written for a picture to be seen.

        Args:
            lines: The picture from the top; what does not fit is left out.
            width: Cells of a line of the terminal.
            height: Its lines.
        """
        wanted = [_cells(line, width) for line in lines[:height]]
        wanted += [[_BLANK] * width for _ in range(height - len(wanted))]
        is_new = [len(row) for row in self._shown] != [width] * height
        if is_new:
            self._shown = [[_BLANK] * width for _ in range(height)]
        parts = ["\x1b[0m\x1b[2J"] if is_new else []
        for number, (old, new) in enumerate(zip(self._shown, wanted, strict=True), 1):
            if old != new:
                parts += self._changes(number, old, new)
        self._shown = wanted
        text = "".join(parts)
        if self._is_plain:
            text = text.translate(_PLAIN_LETTERS)
        return text.encode(self._encoding, "replace")

    def _changes(self, number: int, old: Sequence[Cell], new: Sequence[Cell]) -> Iterator[str]:
        end = len(new)
        while end and new[end - 1] == _BLANK:
            end -= 1
        for start, stop in _runs(old, new, end):
            yield f"\x1b[{number};{start + 1}H{self._text(new[start:stop])}"
        if any(cell != _BLANK for cell in old[end:]):
            yield f"\x1b[{number};{end + 1}H\x1b[K"

    def _text(self, cells: Sequence[Cell]) -> str:
        parts, style = [], ""
        for letter, wanted in cells:
            if wanted != style:
                parts.append(_sgr(wanted, self._colour))
                style = wanted
            parts.append(letter)
        if style:
            parts.append("\x1b[0m")
        return "".join(parts)


def _runs(old: Sequence[Cell], new: Sequence[Cell], end: int) -> Iterator[tuple[int, int]]:
    """Yields where cells differ, near ones together, never half a wide letter."""
    places = [place for place in range(end) if old[place] != new[place]]
    at = 0
    while at < len(places):
        start = stop = places[at]
        while at < len(places) and places[at] - stop <= _NEAR:
            stop = places[at]
            at += 1
        stop += 1
        while start > 0 and "" in (new[start][0], old[start][0]):
            start -= 1
        while stop < end and "" in (new[stop][0], old[stop][0]):
            stop += 1
        yield start, stop


def _cells(line: Line, width: int) -> list[Cell]:
    cells: list[Cell] = []
    for text, style in line:
        if text.isascii() and text.isprintable():
            cells += [(letter, style) for letter in text]
        else:
            _add(cells, text, style)
        if len(cells) >= width:
            break
    if len(cells) > width:
        del cells[width:]
        if get_character_cell_size(cells[-1][0][:1] or " ") > 1:
            cells[-1] = (" ", cells[-1][1])  # its other half is outside
    cells += [_BLANK] * (width - len(cells))
    if len(cells[-1][0]) > 1:
        cells[-1] = (cells[-1][0][:1], cells[-1][1])  # some go to the next line for an accent
    return cells


def _add(cells: list[Cell], text: str, style: str) -> None:
    for letter in text:
        # Whatever came as far as this, the terminal is not to act on it.
        shown = letter if letter.isprintable() else "?"
        size = get_character_cell_size(shown)
        if size > 0:
            cells.append((shown, style))
            cells += [("", style)] * (size - 1)
        elif cells and 0 < len(cells[-1][0]) <= _MOST_COMBINED:
            cells[-1] = (cells[-1][0] + shown, cells[-1][1])


@lru_cache(maxsize=64)
def _sgr(style: str, colour: bool) -> str:
    words = [word for word in style.split() if colour or word not in _COLOURS]
    return f"\x1b[{';'.join(['0', *(_CODES[word] for word in words)])}m"


def _takes_all(encoding: str) -> bool:
    try:
        "─·…−↑↓".encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
