"""The entries of a dump as torch pickles them, read without building what nobody looks at.

torch writes each entry the same way: keys in one order, texts once and by number from then on,
everything else in place. One regular expression for each set of keys takes such an entry apart,
and of its parts only those are decoded that are new: shapes, names and stacks repeat
themselves. An entry with a text that has not been written before is read instruction by
instruction. A dump that anything else has pickled is none of this module's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ncclscope.readers.flight_recorder.decoder import Decoder, PatternError, Strings, number

__all__ = [
    "SPLITS",
    "RawEntry",
    "Stack",
    "ending_of",
    "group_of",
    "head_and_entries",
    "maybe",
    "raw_entries",
    "shapes_of",
    "words",
]

_INT = rb"(?:K.|M..|J....|\x8a\x08........)"
_TEXT = rb"(?:h.|j....)"
_FLAG = rb"[\x88\x89]"
_MAYBE = rb"(?:N|" + _INT + rb")"
_MANY = rb"{0,16384}"  # the engine remembers each, in a hundred times its size
_SHAPES = rb"\]\((?:\]\((?:K.|M..|J....|\x8a\x08........)" + _MANY + rb"e)" + _MANY + rb"e"
_NAMES = rb"\]\((?:h.|j....)" + _MANY + rb"e"
_STACK = rb"\]\((?:[hK].|[}(u]|M..|[jJ]....)" + _MANY + rb"e"
_NUMBERS = rb"\]\((?:K.|M..|J....|\x8a\x08........)" + _MANY + rb"e"
_ANY = rb"(?:N|G........|" + _FLAG + rb"|" + _INT + rb"|" + _TEXT + rb"|" + _NUMBERS + rb")"
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
    "timeout_ms": _INT,
    "is_p2p": _FLAG,
}
SPLITS = re.compile(r"(in|out)(?:put)?_splits?(?:_sizes|_numels|_counts)?\Z")
"""Names of the splits of an all_to_all, which came with format 2.11."""
_LIST = re.compile(rb"X\x07\x00\x00\x00entries(?:q.|r..\x00\x00)\]\(", re.DOTALL)
_TAIL = re.compile(rb"eu(?:q.|r....)?\.\Z", re.DOTALL)
_MOST_ROWS = 1 << 14
"""Entries that are handed over together."""
_MOST_FIELDS = 64
_MOST_STRANGE = 64
"""Entries in a row that are read one by one before the dump is given to another reader."""
_MOST_PATTERNS = 8
"""Sets of keys that one dump may have: with a duration or without, with splits or without."""


class RawEntry(NamedTuple):
    """The parts of an entry, as they stand in the file.

    Neighbours that repeat themselves together are one part, with what stands between them.
    """

    frames: bytes
    record_id: bytes
    group: bytes
    collective_seq_id: bytes
    p2p_seq_id: bytes
    profiling_name: bytes
    time_created_ns: bytes
    shaped: bytes
    state: bytes
    time_discovered_started_ns: bytes
    time_discovered_completed_ns: bytes
    ending: bytes


_SPANS = {
    "group": ("pg_id", "process_group"),
    "shaped": ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
    "ending": ("retired", "is_p2p"),
}
"""Parts of a :class:`RawEntry` that are several fields of the entry: the first and the last."""


class Stack:
    """The frames of some entries, decoded when they are asked for.

    Args:
        data: As they stand in the file.
        strings: The texts of the dump.
    """

    def __init__(self, data: bytes, strings: Strings) -> None:
        self._data = data
        self._strings = strings

    @cached_property
    def frames(self) -> Any:
        """What was written; None where it cannot be read."""
        try:
            return Decoder(self._data, self._strings).value(0)[0]
        except PatternError:
            return None


def head_and_entries(data: bytes) -> tuple[bytes, int]:
    """Return a pickle of all but the entries, and where the entries begin.

    Raises:
        PatternError: There are none, or they are not last.
    """
    found = _LIST.search(data)
    if found is None or _TAIL.search(data, max(len(data) - 9, 0)) is None:
        raise PatternError("no entries")
    return data[: found.end()] + b"eu.", found.end()


def raw_entries(data: bytes, start: int, strings: Strings) -> Iterator[Any]:
    """Yield entries, those that have nothing new taken apart, the others as dictionaries.

    Args:
        data: The whole pickle.
        start: Where the first entry begins.
        strings: Texts before it; new ones are added.

    Yields:
        A list of tuples with the fields of :class:`RawEntry`, of all entries up to the next
        that has something new or other keys; and one that has, as a dictionary.

    Raises:
        PatternError: Something else stands there.
    """
    tail = _TAIL.search(data, max(len(data) - 9, 0))
    position, strange, end = start, 0, -1 if tail is None else tail.start()
    decoder = Decoder(data, strings)
    patterns: dict[tuple[str, ...], Callable[[bytes, int], re.Match[bytes] | None]] = {}
    while position < end:
        rows: list[tuple[bytes, ...]] = []
        for match in patterns.values():
            while len(rows) < _MOST_ROWS and (found := match(data, position)) is not None:
                rows.append(found.groups())
                position = found.end()
            if rows:
                break
        if rows:
            strange = 0
            yield rows
            continue
        strange += 1
        if strange > _MOST_STRANGE:
            raise PatternError("not as torch writes it")
        entry, after = decoder.value(position)
        if not isinstance(entry, dict):
            raise PatternError("an entry is no dictionary")
        yield entry
        names = tuple(entry)
        if len(names) > _MOST_FIELDS:
            raise PatternError("more fields than torch writes")
        if names not in patterns and len(patterns) < _MOST_PATTERNS:
            patterns[names] = _pattern(tuple(decoder.keys(position))).match
        position = after
    if position != end:
        raise PatternError("the list has no end")


@lru_cache(maxsize=64)
def _pattern(keys: tuple[tuple[bytes, str], ...]) -> re.Pattern[bytes]:
    """Return what matches an entry with these keys; its groups are a :class:`RawEntry`."""
    names = [name for _, name in keys]
    spans = _spans(names)
    opened = {fields[0]: part for part, fields in spans.items()}
    closed = {fields[-1] for fields in spans.values()}
    parts = [opened.get(name, name) for name in names]
    groups = [part for part in parts if part in RawEntry._fields]
    if names[:1] != ["frames"]:
        groups.insert(0, "frames")
    if tuple(groups) != RawEntry._fields:
        raise PatternError("fields are missing, or in another order")
    for fields in spans.values():
        places = [names.index(field) for field in fields if field in names]
        if len(places) < len(fields) or places != sorted(places):
            raise PatternError("fields are missing, or in another order")
    shaped = spans["shaped"]
    if tuple(names[names.index(shaped[0]) :][: len(shaped)]) != shaped:
        raise PatternError("shapes are not in a row")
    pieces = [rb"\}\("] if names[0] == "frames" else [rb"\}\(()"]
    for (token, name), part in zip(keys, parts, strict=True):
        pieces.append(re.escape(token))
        if part in RawEntry._fields:
            pieces.append(rb"(")
        pieces.append(_VALUES.get(name, _ANY))
        if name in closed or (part in RawEntry._fields and part not in _SPANS):
            pieces.append(rb")")
    pieces.append(rb"u")
    return re.compile(b"".join(pieces), re.DOTALL)


def _spans(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return fields that are one part, with the splits of an all_to_all next to the shapes."""
    splits = tuple(name for name in names if SPLITS.match(name))
    if not splits:
        return _SPANS
    fields = {*_SPANS["shaped"], *splits}
    first = names.index("input_sizes") if "input_sizes" in names else 0
    shaped = tuple(names[first : first + len(fields)])
    if set(shaped) != fields:
        raise PatternError("splits are not where the shapes are")
    return {**_SPANS, "shaped": shaped}


def shapes_of(part: bytes, strings: Strings) -> dict[str, Any]:
    """Return sizes and types of inputs and outputs, and splits, by the names of their fields.

    The first, whose name does not stand in the part, is always ``input_sizes``.
    """
    return _fields("input_sizes", part, strings)


def group_of(part: bytes, strings: Strings) -> tuple[int, tuple[str, str]]:
    """Return the number of a process group, and its two texts."""
    told = _fields("pg_id", part, strings)
    return told["pg_id"], told["process_group"]


def ending_of(part: bytes, strings: Strings) -> tuple[bool, int, bool]:
    """Return whether the recorder has done with an entry, its timeout, and whether it is p2p."""
    told = _fields("retired", part, strings)
    timeout = told.get("timeout_ms")
    return told["retired"], timeout if isinstance(timeout, int) else 0, told["is_p2p"]


def _fields(first: str, part: bytes, strings: Strings) -> dict[str, Any]:
    """Return the values of consecutive fields, from the first value on, not from its key."""
    decoder = Decoder(part, strings)
    value, position = decoder.value(0)
    found = {first: value}
    while position < len(part):
        key, position = decoder.value(position)
        if not isinstance(key, str):
            raise PatternError("a key is no text")
        found[key], position = decoder.field(key, position)
    return found


def maybe(part: bytes) -> int | None:
    """Return the integer of an instruction, or None."""
    return None if part == b"N" else number(part)


def words(part: bytes, strings: Strings) -> str:
    """Return the text that an instruction refers to."""
    text = strings.get(int.from_bytes(part[1:], "little"))
    if not isinstance(text, str):
        raise PatternError("a text that was never written")
    return text
