"""Baseline file: a stored call sequence as text, for review and for merges.

    # What each rank posts, in order. Made by `ncclscope check --update`, to be reviewed.
    ncclscope baseline 1
    shapes exact

    section                                     # ranks 0-3
      world broadcast [4] float32 root 0
      repeat 61
        tp all_reduce sum [15,2048] bfloat16
        dp all_gather [15,256] int32

One section for each distinct sequence. Text after a ``#`` at the beginning of a line, or between
blanks, is a comment. Communicators are named by role (``tp``), and peers are distances, so that a
program which does the same on more ranks has the same file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclscope.errors import DamagedFileError, InputError, os_reason
from ncclscope.parity.folding import Loop, Node
from ncclscope.parity.sequence import Section, Vocabulary
from ncclscope.parity.spelling import generalize
from ncclscope.private import replace_file
from ncclscope.untrusted import open_regular, printable
from ncclscope.wording.names import ranks_text

VERSION = 1
MAX_BYTES = 64 << 20
MAX_CALLS = 1 << 22
"""Most calls of a file: loops let a short file expand to any number."""
MAX_DEPTH = 64

_MAGIC = "ncclscope baseline"
_SHAPES = ("exact", "ignored")
_STEP = "  "
_COMMENT = re.compile(r"^\s*#.*|(?<!\s)\s+#\s.*")
"""Blanks are gone over once: a line of a million of them takes no longer than others."""
_REPEAT = re.compile(r"repeat ([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Baseline:
    """Content of a baseline file.

    Attributes:
        sections: Stored sequences.
        shapes: Whether tensor sizes are compared.
    """

    sections: tuple[Section, ...]
    shapes: bool = True


def render_baseline(sections: Iterable[Section], words: Vocabulary, *, shapes: bool = True) -> str:
    """Return the text of a baseline.

    Args:
        sections: Sequences to store.
        words: Vocabulary with the texts of their calls.
        shapes: Whether the file holds tensor sizes.
    """
    out = [
        "# What each rank posts, in order. Made by `ncclscope check --update`, to be reviewed.",
        f"{_MAGIC} {VERSION}",
        f"shapes {_SHAPES[not shapes]}",
    ]
    for section in sections:
        out += ["", f"section  # {ranks_text(section.ranks)}" if section.ranks else "section"]
        out += _indented(section.looped(), words, _STEP)
    return "\n".join(out) + "\n"


def _indented(nodes: Sequence[Node], words: Vocabulary, indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Loop):
            yield f"{indent}repeat {node.count}"
            yield from _indented(node.body, words, indent + _STEP)
        else:
            yield f"{indent}{words.texts[node]}"


def write_baseline(path: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees a part of it.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text, _mode(path), synced=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {os_reason(error)}") from error


def _mode(path: Path) -> int:
    """Return the permissions of the existing file, or those of a new one."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask


def read_baseline(path: Path, words: Vocabulary, *, shapes: bool = True) -> Baseline:
    """Read a baseline.

    Args:
        path: The file.
        words: Vocabulary that numbers its lines.
        shapes: False to remove tensor sizes from its calls.

    Raises:
        InputError: The file does not exist or cannot be read.
        DamagedFileError: The file is not a baseline.
    """
    try:
        with open(open_regular(path), encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "write it with: check --update") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {os_reason(error)}") from None
    if len(text) > MAX_BYTES:
        raise DamagedFileError(f"{path} is larger than {MAX_BYTES >> 20} MB")
    return _Parser(path, words, shapes).parse(text)


class _Parser:
    """One pass over the lines of a file."""

    def __init__(self, path: Path, words: Vocabulary, shapes: bool) -> None:
        self.path = path
        self.words = words
        self.shapes = shapes
        self.calls = 0

    def parse(self, text: str) -> Baseline:
        lines = [
            (number, cut)
            for number, line in enumerate(text.splitlines(), 1)
            if (cut := _COMMENT.sub("", line.expandtabs(), count=1).rstrip())
        ]
        if not lines or lines[0][1] != f"{_MAGIC} {VERSION}":
            known = lines and lines[0][1].startswith(_MAGIC)
            raise DamagedFileError(
                f"{self.path} is {'a baseline of another version' if known else 'not a baseline'}",
                "write it with: check --update",
            )
        body = lines[1:]
        if body and body[0][1].startswith("shapes "):
            stated = body[0][1].removeprefix("shapes ")
            if stated not in _SHAPES:
                raise self._damaged(body[0][0], f"shapes are {' or '.join(_SHAPES)}")
            self.shapes = self.shapes and stated == _SHAPES[0]
            body = body[1:]
        groups: list[list[tuple[int, str]]] = []
        for number, line in body:
            if line == "section":
                groups.append([])
            elif groups and line.startswith(" "):
                groups[-1].append((number, line))
            else:
                raise self._damaged(number, "a section was expected")
        return Baseline(tuple(self._section(group) for group in groups), self.shapes)

    def _section(self, lines: list[tuple[int, str]]) -> Section:
        found, end = self._block(lines, 0, -1, 0)
        if end < len(lines):
            raise self._damaged(lines[end][0], "the indentation is uneven")
        return Section([call for call, _ in found], places=[place for _, place in found])

    def _block(
        self, lines: list[tuple[int, str]], start: int, outside: int, depth: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Read lines that are indented more than ``outside``.

        Args:
            lines: Line numbers and texts.
            start: Index of the first line.
            outside: Indentation of the enclosing block; -1 for none.
            depth: Number of enclosing loops.

        Returns:
            Calls with their line numbers, and the index after the last line.
        """
        found: list[tuple[int, int]] = []
        indent = None
        place = start
        while place < len(lines):
            number, line = lines[place]
            own = len(line) - len(line.lstrip(" "))
            if own <= outside:
                break
            indent = own if indent is None else indent
            if own != indent:
                raise self._damaged(number, "the indentation is uneven")
            repeat = _REPEAT.fullmatch(line.strip())
            if repeat is None:
                text = printable(line.strip())
                found.append((self.words.number(text if self.shapes else generalize(text)), number))
                self._count(1)
                place += 1
                continue
            if depth >= MAX_DEPTH:
                raise self._damaged(number, f"more than {MAX_DEPTH} loops in each other")
            body, place = self._block(lines, place + 1, own, depth + 1)
            if not body:
                raise self._damaged(number, "nothing to repeat")
            self._count(len(body) * (int(repeat[1]) - 1))
            found += body * int(repeat[1])
        return found, place

    def _count(self, calls: int) -> None:
        self.calls += calls
        if self.calls > MAX_CALLS:
            raise DamagedFileError(f"{self.path} expands to more than {MAX_CALLS} calls")

    def _damaged(self, number: int, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}:{number}: {what}", "write it with: check --update")
