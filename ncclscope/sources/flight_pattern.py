"""The entries of a dump as torch pickles them, read without building what nobody looks at.

torch writes each entry the same way: keys in one order, texts once and by number from then on,
everything else in place. One regular expression takes such an entry apart, and of its parts
only those are decoded that are new: shapes, names and stacks repeat themselves. An entry
with a text that has not been written before is read instruction by instruction. A dump that
anything else has pickled is none of this module's business.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = [
    "Decoder",
    "PatternError",
    "RawEntry",
    "Stack",
    "Strings",
    "group_of",
    "head_and_entries",
    "number",
    "raw_entries",
    "shapes_of",
    "words",
]

_INT = rb"(?:K.|M..|J....|\x8a\x08........)"
_TEXT = rb"(?:h.|j....)"
_FLAG = rb"[\x88\x89]"
_MAYBE = rb"(?:N|" + _INT + rb")"
_SHAPES = rb"\]\((?:\]\((?:K.|M..|J....|\x8a\x08........)*e)*e"
_NAMES = rb"\]\((?:h.|j....)*e"
_STACK = rb"\]\((?:[hK].|[}(u]|M..|[jJ]....)*e"
_ANY = rb"(?:N|G........|" + _FLAG + rb"|" + _INT + rb"|" + _TEXT + rb")"
_VALUES = {
    "frames": _STACK,
    "record_id": _INT,
    "pg_id": _INT,
    "process_group": _TEXT + _TEXT + rb"\x86",
    "collective_seq_id": _INT,
    "p2p_seq_id": _INT,
    "profiling_name": _TEXT,
    "time_created_ns": _INT,
    "input_sizes": _SHAPES,
    "input_dtypes": _NAMES,
    "output_sizes": _SHAPES,
    "output_dtypes": _NAMES,
    "state": _TEXT,
    "time_discovered_started_ns": _MAYBE,
    "time_discovered_completed_ns": _MAYBE,
    "retired": _FLAG,
    "is_p2p": _FLAG,
}
_SHAPED = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
_LIST = re.compile(rb"X\x07\x00\x00\x00entries(?:q.|r..\x00\x00)\]\(", re.DOTALL)
_TAIL = re.compile(rb"eu(?:q.|r....)?\.\Z", re.DOTALL)
_PAIR = "process_group"
_DEEPEST = 8
_MOST_STRANGE = 64
"""Entries in a row that are read one by one before the dump is given to another reader."""


class PatternError(Exception):
    """The dump was not written by torch, or not as far as it can be read."""


class Strings(dict[int, Any]):
    """Texts, and stack frames, by the number that they have in the file."""


class RawEntry(NamedTuple):
    """The parts of an entry, as they stand in the file; the four of the shape are one."""

    frames: bytes
    record_id: bytes
    pg_id: bytes
    process_group: bytes
    collective_seq_id: bytes
    p2p_seq_id: bytes
    profiling_name: bytes
    time_created_ns: bytes
    shaped: bytes
    state: bytes
    retired: bytes
    is_p2p: bytes


class Stack(NamedTuple):
    """The frames of an entry, to be decoded when they are asked for."""

    data: bytes
    strings: Strings

    def frames(self) -> Any:
        """Returns what was written; None where it cannot be read."""
        try:
            return Decoder(self.data, self.strings).value(0)[0]
        except PatternError:
            return None


def head_and_entries(data: bytes) -> tuple[bytes, int]:
    """Returns a pickle of all but the entries, and where the entries begin.

    Raises:
        PatternError: There are none, or they are not last.
    """
    found = _LIST.search(data)
    if found is None or _TAIL.search(data, max(len(data) - 9, 0)) is None:
        raise PatternError("no entries")
    return data[: found.end()] + b"eu.", found.end()


def raw_entries(data: bytes, start: int, strings: Strings) -> Iterator[Any]:
    """Yields entries, taken apart where they have nothing new, else as dictionaries.

    Args:
        data: The whole pickle.
        start: Where the first entry begins.
        strings: Texts before it; new ones are added.

    Yields:
        A tuple with the fields of :class:`RawEntry`, or a dictionary.

    Raises:
        PatternError: Something else stands there.
    """
    tail = _TAIL.search(data, max(len(data) - 9, 0))
    position, strange, end = start, 0, -1 if tail is None else tail.start()
    decoder = Decoder(data, strings)
    match = None
    while position < end:
        found = match(data, position) if match is not None else None
        if found is not None:
            strange = 0
            position = found.end()
            yield found.groups()
            continue
        strange += 1
        if strange > _MOST_STRANGE:
            raise PatternError("not as torch writes it")
        keys = decoder.keys(position) if match is None else []
        entry, position = decoder.value(position)
        if not isinstance(entry, dict):
            raise PatternError("an entry is no dictionary")
        yield entry
        if match is None:
            match = _pattern(tuple(keys)).match
    if position != end:
        raise PatternError("the list has no end")


@lru_cache(maxsize=64)
def _pattern(keys: tuple[tuple[bytes, str], ...]) -> re.Pattern[bytes]:
    """Returns what matches an entry with these keys; its groups are a :class:`RawEntry`."""
    names = [name for _, name in keys]
    groups = [name for name in names if name in RawEntry._fields or name == _SHAPED[0]]
    if names[:1] != ["frames"]:
        groups.insert(0, "frames")
    if groups != [_SHAPED[0] if name == "shaped" else name for name in RawEntry._fields]:
        raise PatternError("fields are missing, or in another order")
    first = names.index(_SHAPED[0])
    if tuple(names[first : first + 4]) != _SHAPED:
        raise PatternError("shapes are not in a row")
    pieces = [rb"\}\("] if names[0] == "frames" else [rb"\}\(()"]
    for token, name in keys:
        value = _VALUES.get(name, _ANY)
        if name in RawEntry._fields:
            pieces += [re.escape(token), rb"(", value, rb")"]
        elif name == _SHAPED[0]:
            pieces += [re.escape(token), rb"(", value]
        elif name == _SHAPED[-1]:
            pieces += [re.escape(token), value, rb")"]
        else:
            pieces += [re.escape(token), value]
    pieces.append(rb"u")
    return re.compile(b"".join(pieces), re.DOTALL)


def shapes_of(part: bytes, strings: Strings) -> list[Any]:
    """Input sizes, input types, output sizes and output types."""
    decoder = Decoder(part, strings)
    found: list[Any] = []
    position = 0
    while len(found) < 4:
        if found:
            _, position = decoder.value(position)  # the next one's key
        value, position = decoder.value(position)
        found.append(value)
    return found


def number(part: bytes) -> int:
    """The integer of an instruction."""
    if part[0] == 0x8A:
        return int.from_bytes(part[2:], "little", signed=True)
    return int.from_bytes(part[1:], "little", signed=part[0] == 0x4A)


def words(part: bytes, strings: Strings) -> str:
    """The text that an instruction refers to."""
    text = strings.get(int.from_bytes(part[1:], "little"))
    if not isinstance(text, str):
        raise PatternError("a text that was never written")
    return text


def group_of(part: bytes, strings: Strings) -> tuple[str, str]:
    """The two texts of a process group."""
    width = 2 if part[:1] == b"h" else 5
    return words(part[:width], strings), words(part[width:-1], strings)


class Decoder:
    """Reads values instruction by instruction.

    Args:
        data: The pickle.
        strings: Texts by number; those that it comes by are added.
    """

    def __init__(self, data: bytes, strings: Strings) -> None:
        self._data = data
        self._strings = strings

    def keys(self, position: int) -> list[tuple[bytes, str]]:
        """Returns the keys of the dictionary at a place, as they are referred to from then on."""
        if self._data[position : position + 2] != b"}(":
            raise PatternError("no dictionary")
        position += 2
        found = []
        while self._data[position : position + 1] != b"u":
            key, position = self.value(position)
            _, position = (self._pair if key == _PAIR else self.value)(position, 1)
            if not isinstance(key, str):
                raise PatternError("a key is no text")
            found.append((self._token(key), key))
        return found

    def _token(self, text: str) -> bytes:
        place = next((place for place, own in self._strings.items() if own == text), -1)
        if place < 0:
            raise PatternError("a key was not kept")
        return b"h%c" % place if place < 256 else b"j" + struct.pack("<I", place)

    def value(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """Returns the value at a place, and where it ends.

        Raises:
            PatternError: There is none that torch would have written.
        """
        try:
            value, position = self._one(position, depth)
        except (IndexError, struct.error):
            raise PatternError("it is torn") from None
        return value, position

    def _one(self, position: int, depth: int) -> tuple[Any, int]:
        data = self._data
        code = data[position]
        position += 1
        if code in b"hj":
            width = 1 if code == 0x68 else 4
            text = self._strings.get(int.from_bytes(data[position : position + width], "little"))
            position += width
            if text is None:
                raise PatternError("a text that was never written")
            return text, position
        if code == 0x58:
            return self._text(position)
        if code in b"KMJ":
            width = {0x4B: 1, 0x4D: 2, 0x4A: 4}[code]
            return number(data[position - 1 : position + width]), position + width
        if code == 0x8A and data[position] == 8:
            return number(data[position - 1 : position + 9]), position + 9
        if code == 0x47:
            return struct.unpack(">d", data[position : position + 8])[0], position + 8
        constants = {0x4E: None, 0x88: True, 0x89: False}
        if code in constants:
            return constants[code], position
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
        found = []
        while self._data[position] != 0x65:
            value, position = self.value(position, depth + 2)
            found.append(value)
        return found, position + 1

    def _dict(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        found = {}
        while self._data[position] != 0x75:
            key, position = self.value(position, depth + 2)
            if not isinstance(key, str):
                raise PatternError("a key is no text")
            read = self._pair if key == _PAIR else self.value
            found[key], position = read(position, depth + 1)
        position += 1
        code = self._data[position : position + 1]
        if depth and code in (b"q", b"r"):  # a frame, to be referred to
            end = position + (2 if code == b"q" else 5)
            self._strings[int.from_bytes(self._data[position + 1 : end], "little")] = found
            position = end
        return found, position
