"""Fields of messages, each held against its type: a node may run another version, or be hostile.

A field of another type raises TypeError, which makes the whole message one that cannot be
understood: half of what a node says would be a rank that seems to be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ncclscope.ring import layout
from ncclscope.untrusted import integer, integers, rank_number, text

Value = TypeVar("Value")


def _strict(read: Callable[[Any], Value | None], what: str) -> Callable[[Any], Value]:
    def strict(value: Any) -> Value:
        found = read(value)
        if found is None:
            raise TypeError(f"no {what}")
        return found

    return strict


as_integer = _strict(integer, "integer")
"""Return a 64-bit integer."""
as_integers = _strict(integers, "list of integers")
"""Return a list of 64-bit integers."""
as_text = _strict(lambda value: text(value) if isinstance(value, str) else None, "text")
"""Return a text."""


def as_rank(value: Any) -> int:
    """Return a global rank; -1 for an integer that is none."""
    return rank_number(as_integer(value))


def as_count(value: Any) -> int:
    """Return a number or a place: sums and differences of two of them have 64 bits, too."""
    found = as_integer(value)
    if not 0 <= found <= layout.MOST:
        raise TypeError("no count")
    return found


def as_hash(value: Any) -> int:
    """Return a running hash or a signature, which are unsigned."""
    found = as_integer(value)
    if found < 0:
        raise TypeError("no hash")
    return found


def as_flag(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise TypeError("no truth value")
    return value


def as_list(value: Any) -> list[Any]:
    """Return a list of anything."""
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def optional(read: Callable[[Any], Value]) -> Callable[[Any], Value | None]:
    """Return a reader of a value that may be absent."""
    return lambda value: None if value is None else read(value)


def as_row(readers: Iterable[Callable[[Any], Any]], values: Iterable[Any]) -> list[Any]:
    """Return values, each held against its reader; ValueError for more or fewer than those."""
    return [read(value) for read, value in zip(readers, values, strict=True)]
