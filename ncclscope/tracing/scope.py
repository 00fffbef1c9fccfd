"""What holds for the calls of one thread while a ``with`` block is open.

Both states are rare, so both are kept in tables that are empty most of the time: a probe
asks ``if scope.folding`` before it asks which thread it is on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator

__all__ = [
    "enter_group",
    "folded",
    "folding",
    "group_number",
    "groups",
    "is_folded",
    "leave_group",
]

folding: dict[int, int] = {}
"""Thread identity -> depth of :func:`folded` blocks."""

groups: dict[int, list[int]] = {}
"""Thread identity -> [depth, number] of the open NCCL group."""

_group_numbers = itertools.count(1)


@contextlib.contextmanager
def folded() -> Iterator[None]:
    """Calls of this thread inside the block are parts of one that is already recorded."""
    thread = threading.get_ident()
    folding[thread] = folding.get(thread, 0) + 1
    try:
        yield
    finally:
        depth = folding[thread] - 1
        if depth:
            folding[thread] = depth
        else:
            del folding[thread]


def is_folded() -> bool:
    """Return whether this thread is inside a :func:`folded` block."""
    return bool(folding) and threading.get_ident() in folding


def enter_group() -> None:
    """Note that ncclGroupStart was called on this thread; only the outermost group counts."""
    thread = threading.get_ident()
    state = groups.get(thread)
    if state is None:
        groups[thread] = [1, next(_group_numbers)]
    else:
        state[0] += 1


def leave_group() -> None:
    """Note that ncclGroupEnd was called on this thread."""
    thread = threading.get_ident()
    state = groups.get(thread)
    if state is not None:
        state[0] -= 1
        if state[0] <= 0:
            del groups[thread]


def group_number() -> int:
    """Return number of the group that is open on this thread; 0 when none is."""
    if not groups:
        return 0
    state = groups.get(threading.get_ident())
    return state[1] if state else 0


def _forget_threads() -> None:
    """Drop what the parent's other threads had open: a new one here may get their identity."""
    here = threading.get_ident()
    for table in (folding, groups):
        for thread in [thread for thread in table if thread != here]:
            del table[thread]


os.register_at_fork(after_in_child=_forget_threads)
