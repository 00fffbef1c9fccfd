"""Read the entries of a dump pickled by torch, decoding only what is needed.

torch writes each entry the same way: keys in one order, each text once and then by number, other
values inline. One regular expression per set of keys splits such an entry. Shapes, names and
stacks repeat, so only new parts are decoded. An entry with a new text is read instruction by
instruction. Dumps from another pickler are left to :mod:`plain_pickle`.
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
_MANY = rb"{0,16384}"  # re keeps each repetition, at a hundred times its size
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
"""Names of the splits of an all_to_all, present since format 2.11."""
_LIST = re.compile(rb"X\x07\x00\x00\x00entries(?:q.|r..\x00\x00)\]\(", re.DOTALL)
_TAIL = re.compile(rb"eu(?:q.|r....)?\.\Z", re.DOTALL)
_MOST_ROWS = 1 << 14
"""Most entries that are yielded together."""
_MOST_FIELDS = 64
_MOST_STRANGE = 64
"""Consecutive entries that may need slow reading before this reader gives up."""
_MOST_PATTERNS = 8
"""Sets of keys in one dump: with or without duration, with or without splits."""


class RawEntry(NamedTuple):
    """The undecoded parts of an entry.

    Neighbouring fields that repeat together form one part, with the keys between them.
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
"""Parts of a :class:`RawEntry` that span several fields: the first to the last of them."""


class Stack:
    """The stack of some entries, decoded on demand.

    Args:
        data: Its bytes in the file.
        strings: The texts of the dump.
    """

    def __init__(self, data: bytes, strings: Strings) -> None:
        self._data = data
        self._strings = strings

    @cached_property
    def frames(self) -> Any:
        """The frames; None if they cannot be decoded."""
        try:
            return Decoder(self._data, self._strings).value(0)[0]
        except PatternError:
            return None


def head_and_entries(data: bytes) -> tuple[bytes, int]:
    """Return a pickle of the dump without entries, and the offset of the first entry in bytes.

    Raises:
        PatternError: There are no entries, or they are not last.
    """
    found = _LIST.search(data)
    if found is None or _TAIL.search(data, max(len(data) - 9, 0)) is None:
        raise PatternError("no entries")
    return data[: found.end()] + b"eu.", found.end()


def raw_entries(data: bytes, start: int, strings: Strings) -> Iterator[Any]:
    """Yield entries: split ones in lists, and those with new texts as dictionaries.

    Args:
        data: The whole pickle.
        start: Offset of the first entry in bytes.
        strings: Texts before it; new ones are added.

    Yields:
        A list of tuples with the fields of :class:`RawEntry`, for all entries up to the next one
        with a new text or other keys; then that entry as a dictionary.

    Raises:
        PatternError: torch would not write such a pickle.
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
            raise PatternError("an entry is not a dictionary")
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
    """Return a pattern for an entry with these keys; its groups are a :class:`RawEntry`."""
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
    """Return the fields of each multi-field part; splits of an all_to_all join the shapes."""
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
    """Return shapes and types of inputs and outputs, and splits, by field name.

    The part begins with the value of ``input_sizes``, without its key.
    """
    return _fields("input_sizes", part, strings)


def group_of(part: bytes, strings: Strings) -> tuple[int, tuple[str, str]]:
    """Return the number of a process group, and its name and description."""
    fields = _fields("pg_id", part, strings)
    return fields["pg_id"], fields["process_group"]


def ending_of(part: bytes, strings: Strings) -> tuple[bool, int, bool]:
    """Return whether an entry is retired, its timeout in ms, and whether it is p2p."""
    fields = _fields("retired", part, strings)
    timeout = fields.get("timeout_ms")
    return fields["retired"], timeout if isinstance(timeout, int) else 0, fields["is_p2p"]


def _fields(first: str, part: bytes, strings: Strings) -> dict[str, Any]:
    """Decode consecutive fields.

    Args:
        first: Name of the first field, whose key is not in the part.
        part: The value of the first field, then keys and values.
        strings: The texts of the dump.
    """
    decoder = Decoder(part, strings)
    value, position = decoder.value(0)
    found = {first: value}
    while position < len(part):
        key, position = decoder.value(position)
        if not isinstance(key, str):
            raise PatternError("a key is not a text")
        found[key], position = decoder.field(key, position)
    return found


def maybe(part: bytes) -> int | None:
    """Return the integer of an instruction, or None."""
    return None if part == b"N" else number(part)


def words(part: bytes, strings: Strings) -> str:
    """Return the text that a pickle instruction refers to."""
    text = strings.get(int.from_bytes(part[1:], "little"))
    if not isinstance(text, str):
        raise PatternError("a text that was never written")
    return text
