"""Fit the prose of a help text, which is written for 100 columns, to a narrower terminal."""

from __future__ import annotations

import re
import textwrap

_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_TITLE = re.compile(r"[a-z ]+: ")
_FULL = 60
"""Columns from which on a line of a paragraph may continue in the next."""
_INDENT = 6


def fitted(text: str, width: int) -> str:
    """Return a text without lines that are too wide; commands keep theirs.

    Args:
        text: Paragraphs, commands after ``$`` with an explanation, and tables. Rows begin with two
            spaces, and have at least two between columns.
        width: Columns of the terminal.
    """
    if all(len(line) <= width for line in text.splitlines()):
        return text
    lines = [part for entry in _entries(text) for part in _wrapped(entry, width)]
    return "\n".join(lines) + text[len(text.rstrip("\n")) :]


def _entries(text: str) -> list[list[str]]:
    """Return each row or paragraph as its lines."""
    entries: list[list[str]] = [[]]
    for line in text.splitlines():
        last = entries[-1][-1] if entries[-1] else ""
        is_deeper = line.startswith("    ")
        is_prose = len(last) >= _FULL and last[:1].strip() and line[:1].strip()
        if last and (is_deeper or (is_prose and not _TITLE.match(line))):
            entries[-1].append(line)
        else:
            entries.append([line])
    return entries[1:]


def _wrapped(lines: list[str], width: int) -> list[str]:
    first, *more = lines
    gaps = list(_GAP.finditer(first))
    if all(len(line) <= width for line in lines):
        return lines
    if first.lstrip().startswith("$"):
        if not gaps:
            return lines
        command, about = first[: gaps[-1].start()], first[gaps[-1].end() :]
        return [command, *_fill(" " * _INDENT + about, width, _INDENT)]
    column = len(more[0]) - len(more[0].lstrip()) if more else gaps[0].end() if gaps else 0
    return _fill(" ".join([first, *(line.strip() for line in more)]), width, column)


def _fill(text: str, width: int, column: int) -> list[str]:
    indent = " " * (column if column < width // 2 else _INDENT)
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
