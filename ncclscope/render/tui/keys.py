"""Decoder of a terminal's key sequences into names of keys."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_LONGEST = 64
_NAMES = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"[H": "home",
    b"[F": "end",
    b"[1~": "home",
    b"[4~": "end",
    b"[5~": "page up",
    b"[6~": "page down",
    b"[7~": "home",
    b"[8~": "end",
    b"[Z": "back tab",
}
_LETTERS = {"\t": "tab", "\r": "enter", "\n": "enter", "\x0c": "redraw", " ": "space"}


class Keys:
    """Decodes input that may end in the middle of a key's sequence."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def waits(self) -> bool:
        """Whether the input so far is the beginning of a sequence, or Escape alone."""
        return bool(self._rest)

    def take(self, data: bytes) -> list[str]:
        """Return the keys in ``data``: their names, or the letters themselves."""
        data, self._rest = self._rest + data, b""
        found = []
        while data:
            if data[:1] != b"\x1b":
                letter, data = data[:1].decode("latin-1"), data[1:]
                found.append(_LETTERS.get(letter, letter))
                continue
            if match := _SEQUENCE.match(data):
                # Arrow keys in application mode begin with O in place of [.
                name = _NAMES.get(match[0][1:].replace(b"O", b"[", 1))
                found += [name] if name else []
                data = data[match.end() :]
            elif _BEGUN.match(data) and len(data) < _LONGEST:
                self._rest, data = data, b""
            else:
                found.append("escape")
                data = data[1:]
        return found

    def end(self) -> list[str]:
        """Return the key of an unfinished sequence after which nothing more came."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest else []
