"""What a terminal sends when a key is pressed -> the name of the key."""

from __future__ import annotations

import re

__all__ = ["Keys"]

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
    """Takes what has been read, which may end inside of what one key sends."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def waits(self) -> bool:
        """Whether more is to come, or the key was Escape alone."""
        return bool(self._rest)

    def take(self, data: bytes) -> list[str]:
        """Returns the keys that were pressed: names, or the letters themselves."""
        data, self._rest = self._rest + data, b""
        found = []
        while data:
            if data[:1] != b"\x1b":
                letter, data = data[:1].decode("latin-1"), data[1:]
                found.append(_LETTERS.get(letter, letter))
                continue
            if match := _SEQUENCE.match(data):
                # Applications' arrows differ from the cursor's in one letter.
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
        """Returns what was pressed if nothing more has come for a while."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest else []
