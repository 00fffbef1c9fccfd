"""Decode single values of a pickle written by torch, from any offset."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["Decoder", "PatternError", "Strings", "number"]

_PAIR = "process_group"
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_DEEPEST = 8


class PatternError(Exception):
    """The dump was not pickled by torch, or is incomplete."""


class Strings(dict[int, Any]):
    """Texts and stack frames by their memo number in the pickle."""


def number(part: bytes) -> int:
    """Return the integer of an instruction."""
    if part[0] == 0x8A:
        return int.from_bytes(part[2:], "little", signed=True)
    return int.from_bytes(part[1:], "little", signed=part[0] == 0x4A)


class Decoder:
    """Reads values instruction by instruction.

    Args:
        data: The pickle.
        strings: Texts by number; new ones are added.
    """

    def __init__(self, data: bytes, strings: Strings) -> None:
        self._data = data
        self._strings = strings

    def keys(self, position: int) -> list[tuple[bytes, str]]:
        """Return the keys of the dictionary at `position`, each with its memo instruction."""
        if self._data[position : position + 2] != b"}(":
            raise PatternError("no dictionary")
        position += 2
        found = []
        places: dict[str, int] = {}
        for place, own in self._strings.items():
            if isinstance(own, str):
                places.setdefault(own, place)
        while self._data[position : position + 1] != b"u":
            key, position = self.value(position)
            _, position = self.field(key, position, 1)
            if not isinstance(key, str):
                raise PatternError("a key is not a text")
            found.append((_token(places.get(key, -1)), key))
        return found

    def value(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value at `position`, and the offset of its end in bytes.

        Raises:
            PatternError: torch would not write such a value.
        """
        data = self._data
        try:
            code = data[position]
            if code == 0x68:
                value = self._strings[data[position + 1]]
            elif code == 0x4B:
                value = data[position + 1]
            else:
                return self._one(code, position + 1, depth)
        except (IndexError, struct.error):
            raise PatternError("it is truncated") from None
        except KeyError:
            raise PatternError("a text that was never written") from None
        return value, position + 2

    def field(self, key: Any, position: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value of a field and the offset of its end.

        Args:
            key: Key of the field.
            position: Offset of its value in bytes.
            depth: Nesting depth so far.
        """
        return (self._pair if key == _PAIR else self.value)(position, depth)

    def _one(self, code: int, position: int, depth: int) -> tuple[Any, int]:
        """Read the operand of an instruction; return its value and the offset of its end."""
        data = self._data
        if code == 0x6A:
            end = position + 4
            return self._strings[int.from_bytes(data[position:end], "little")], end
        if code == 0x58:
            return self._text(position)
        if code in b"MJ":
            end = position + (2 if code == 0x4D else 4)
            return number(data[position - 1 : end]), end
        if code == 0x8A and data[position] == 8:
            return number(data[position - 1 : position + 9]), position + 9
        if code == 0x47:
            return struct.unpack(">d", data[position : position + 8])[0], position + 8
        if code in _CONSTANTS:
            return _CONSTANTS[code], position
        if depth < _DEEPEST and data[position] == 0x28:
            if code == 0x5D:
                return self._list(position + 1, depth)
            if code == 0x7D:
                return self._dict(position + 1, depth)
        raise PatternError("an instruction that torch does not write")

    def _text(self, position: int) -> tuple[str, int]:
        data = self._data
        start = position + 4
        end = start + int.from_bytes(data[position:start], "little")
        if data[end] not in b"qr":
            raise PatternError("a text without a number")
        width = 1 if data[end] == 0x71 else 4
        text = data[start:end].decode("utf-8", "replace")
        self._strings[int.from_bytes(data[end + 1 : end + 1 + width], "little")] = text
        return text, end + 1 + width

    def _pair(self, position: int, depth: int) -> tuple[tuple[Any, Any], int]:
        first, position = self.value(position, depth)
        second, position = self.value(position, depth)
        if self._data[position : position + 1] != b"\x86":
            raise PatternError("no pair")
        return (first, second), position + 1

    def _list(self, position: int, depth: int) -> tuple[list[Any], int]:
        data, strings = self._data, self._strings
        found = []
        while (code := data[position]) != 0x65:
            if code == 0x68:
                found.append(strings[data[position + 1]])
                position += 2
            elif code == 0x6A:
                found.append(strings[int.from_bytes(data[position + 1 : position + 5], "little")])
                position += 5
            else:
                value, position = self.value(position, depth + 2)
                found.append(value)
        return found, position + 1

    def _dict(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        data, strings = self._data, self._strings
        found = {}
        while (code := data[position]) != 0x75:
            if code == 0x68:
                key = strings[data[position + 1]]
                position += 2
            else:
                key, position = self.value(position, depth + 2)
            if not isinstance(key, str):
                raise PatternError("a key is not a text")
            if key == _PAIR:
                found[key], position = self._pair(position, depth + 1)
            else:
                found[key], position = self.value(position, depth + 1)
        position += 1
        code = data[position]
        if depth and code in b"qr":  # a stack frame with a memo number
            end = position + (2 if code == 0x71 else 5)
            strings[int.from_bytes(data[position + 1 : end], "little")] = found
            position = end
        return found, position


def _token(place: int) -> bytes:
    """Return the instruction that refers to a text by its memo number."""
    if place < 0:
        raise PatternError("a key was not kept")
    return b"h%c" % place if place < 256 else b"j" + struct.pack("<I", place)
