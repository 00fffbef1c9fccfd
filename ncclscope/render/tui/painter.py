"""Encodes a screen as terminal output, sending only the cells that changed.

Remote terminals are slow, and a screen that is cleared and drawn again flickers. So the painter
remembers what the terminal shows, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size

from ncclscope.render.tui.spans import Line

Cell = tuple[str, str]
"""Character and style of one cell; the second cell of a wide character is empty."""

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
"""ASCII replacements for terminals with a smaller encoding."""
_NEAR = 8
"""Unchanged cells that are shorter to write again than to skip."""
_MOST_COMBINED = 4
"""Characters that share a cell: a hostile name may have thousands of combining accents."""


class Painter:
    """Remembers what a terminal shows.

    Args:
        encoding: Encoding of the terminal.
        colour: Whether to use colours.
    """

    def __init__(self, encoding: str = "utf-8", *, colour: bool = True) -> None:
        self._encoding = encoding
        self._is_plain = not _takes_all(encoding)
        self._colour = colour
        self._shown: list[list[Cell]] = []

    def forget(self) -> None:
        """Forget what the terminal shows, so that the next screen is drawn whole."""
        self._shown = []

    def paint(self, lines: Sequence[Line], width: int, height: int) -> bytes:
        """Return the bytes that make the terminal show a screen.

        Args:
            lines: Lines from the top; further ones than ``height`` are left out.
            width: Width of the terminal in cells.
            height: Height of the terminal in lines.
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
    """Yield spans of cells that differ, near ones merged, never half a wide character."""
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
            cells[-1] = (" ", cells[-1][1])  # its other half does not fit
    cells += [_BLANK] * (width - len(cells))
    if len(cells[-1][0]) > 1:
        cells[-1] = (cells[-1][0][:1], cells[-1][1])  # an accent may wrap to the next line
    return cells


def _add(cells: list[Cell], text: str, style: str) -> None:
    for letter in text:
        # The terminal must never act on a control character.
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
