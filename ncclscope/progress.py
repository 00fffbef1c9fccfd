"""Report the progress of reading and comparing to a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Watcher = Callable[[str, int, int], None]
"""Called with the name of the work, the number of parts done, and the number of all parts."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def steps(doing: str, parts: Sequence[T]) -> Iterator[T]:
    """Yield the parts of some work, and call the watcher before each of them."""
    watcher = _watcher.get()
    for done, part in enumerate(parts):
        if watcher is not None:
            watcher(doing, done, len(parts))
        yield part
    if watcher is not None:
        watcher(doing, len(parts), len(parts))


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call a watcher for all steps inside the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
