"""A fingerprint of all that a reader can get from a ring.

Reading a ring takes a millisecond and a verdict twenty. Most damages lead the reader to the same
content, so that the verdict on it is known.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope.readers.ring.transfers import engine_transfers
from ncclscope.ring.reader import RingFile

__all__ = ["fingerprint_file"]

_PLACE = frozenset({"path", "inode"})
"""What says where a ring is and not what it holds."""


def fingerprint_file(path: Path) -> bytes:
    """Return a digest of all that a reader gives for a ring, or of how it refuses."""
    try:
        if not path.stat().st_size:
            return b"empty"
        with RingFile(path) as ring:
            content = tuple(_content(ring))
    except Exception as error:  # the verdict says whether it may be
        content = (_refusal(error),)
    return blake2b(marshal.dumps(content, 2), digest_size=16).digest()


def _content(ring: RingFile) -> Iterator[Any]:
    """Yield all that a ring's reader makes public."""
    for name in _public(frozenset(vars(ring))):
        yield name, _kept(partial(getattr, ring, name))
    yield _kept(partial(engine_transfers, ring))
    yield [_kept(partial(ring.marks, comm)) for comm in ring.states]
    try:
        records = ring.window(ring.oldest, ring.head)
    except Exception as error:
        yield _refusal(error)
        return
    yield records.tobytes()
    for place in np.unique(records["sizes"]).tolist():
        yield place, _kept(partial(ring.sizes, place)) if place else None


@lru_cache
def _public(own: frozenset[str]) -> list[str]:
    """Return the names of the public attributes of a ring, without its methods."""
    names = own | {name for name in dir(RingFile) if not callable(getattr(RingFile, name))}
    return sorted(name for name in names if not name.startswith("_") and name not in _PLACE)


def _kept(ask: Callable[[], Any]) -> Any:
    """Return what a reader gives, in plain form, or how it refuses."""
    try:
        return _plain(ask())
    except Exception as error:
        return _refusal(error)


def _refusal(error: Exception) -> Any:
    return "refused", type(error).__name__, str(error)


def _plain(value: Any) -> Any:
    """Return a value, and all that it leads to, as tuples and scalars."""
    kind = type(value)
    if value is None or kind in (int, str, float, bool, bytes):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple((_plain(key), _plain(item)) for key, item in value.items())
    if isinstance(value, Sequence):
        return (kind.__name__, *map(_plain, value))
    if isinstance(value, AbstractSet):
        return tuple(sorted(map(repr, value)))
    if is_dataclass(value):
        return tuple(_plain(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, int):
        return int(value)
    return (kind.__name__, *(_plain(item) for item in vars(value).values()))
