"""Per-thread state while a block is open: suppressed or announced calls, and NCCL groups.

These states are rare, so their tables are empty most of the time. A probe checks
``if scope.suppressing`` before it looks up its thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

from ncclscope import native
from ncclscope.native.profiler import SLOT, is_ours

suppressing: dict[int, int] = {}
"""Depth of open :func:`suppressed` blocks by thread identity."""

listeners: set[str] = set()
"""What sees the same calls again further down, so that probes must announce theirs: torch's
dispatcher, NCCL's profiler plugin."""

_announced: dict[int, int] = {}
"""Depth of open :func:`announce` blocks by thread identity."""

groups: dict[int, list[int]] = {}
"""[depth, number] of the open NCCL group by thread identity."""

group_numbers = itertools.count(1)
"""Numbers of the groups that are opened."""


@contextlib.contextmanager
def suppressed() -> Iterator[None]:
    """Suppress recording of this thread's calls in the block: a recorded call contains them."""
    suppress()
    try:
        yield
    finally:
        resume()


def suppress() -> bool:
    """Suppress recording of this thread's calls until :func:`resume`; return True. They nest."""
    thread = threading.get_ident()
    suppressing[thread] = suppressing.get(thread, 0) + 1
    announce(None)
    return True


def resume(_token: Any = None) -> None:
    """Undo the last :func:`suppress` of this thread."""
    conclude()
    thread = threading.get_ident()
    depth = suppressing[thread] - 1
    if depth:
        suppressing[thread] = depth
    else:
        del suppressing[thread]


def is_suppressed() -> bool:
    """Return whether this thread is inside a :func:`suppressed` block."""
    return bool(suppressing) and threading.get_ident() in suppressing


def expect_plugin() -> None:
    """Have probes announce their calls if the environment makes NCCL load our plugin."""
    if is_ours(os.environ.get(SLOT, "")):
        listeners.add("nccl")


def announce(_channel: Any) -> None:
    """Declare that this thread enqueues a call that a probe has just recorded.

    Until :func:`conclude`, nothing further down records this thread's calls. They nest.

    Args:
        _channel: The channel of the communicator.
    """
    thread = threading.get_ident()
    _announced[thread] = _announced.get(thread, 0) + 1


def conclude() -> None:
    """Declare that the announced call has been enqueued or has failed."""
    thread = threading.get_ident()
    depth = _announced.get(thread, 1) - 1
    if depth:
        _announced[thread] = depth
    else:
        _announced.pop(thread, None)


def is_announced() -> bool:
    """Return whether this thread's calls belong to a call that a probe has recorded."""
    return threading.get_ident() in _announced


_core = native.core()
if _core is not None:
    # The plugin asks the same question, from C.
    announce, conclude, is_announced = _core.announce, _core.conclude, _core.is_announced


def enter_group() -> None:
    """Record ncclGroupStart on this thread; only the outermost group counts."""
    thread = threading.get_ident()
    state = groups.get(thread)
    if state is None:
        groups[thread] = [1, next(group_numbers)]
    else:
        state[0] += 1


def leave_group() -> None:
    """Record ncclGroupEnd on this thread."""
    thread = threading.get_ident()
    state = groups.get(thread)
    if state is not None:
        state[0] -= 1
        if state[0] <= 0:
            del groups[thread]


def group_number() -> int:
    """Return the number of the group open on this thread; 0 if there is none."""
    if not groups:
        return 0
    state = groups.get(threading.get_ident())
    return state[1] if state else 0


def _forget_threads() -> None:
    """Drop the state of the parent's other threads, whose identities new threads may get."""
    here = threading.get_ident()
    for table in (suppressing, _announced, groups):
        for thread in [thread for thread in table if thread != here]:
            del table[thread]


os.register_at_fork(after_in_child=_forget_threads)
