"""The tracer of this process, if the environment enables tracing.

Probes call :func:`current` for each communicator and never keep the tracer: a forked child has
none until it records its first call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ncclscope import native
from ncclscope.errors import NcclscopeError
from ncclscope.ring import layout
from ncclscope.ring.place import made_here
from ncclscope.settings import directory, variable
from ncclscope.tracing import identity
from ncclscope.tracing.tracer import Tracer
from ncclscope.tracing.warning import warn_once

__all__ = [
    "current",
    "describe",
    "directory",
    "enabled",
    "generation",
    "on_reset",
    "opened",
    "warn_once",
]

_lock = threading.RLock()
_tracer: Tracer | None = None
_failed = False
_resets: list[Callable[[], None]] = []
_described: dict[str, Any] = {}
"""Fields from :func:`describe`, kept for a ring that is created later."""

generation = 0
"""Incremented at each fork; cached look-ups of another generation are invalid."""


def enabled() -> bool:
    """Return whether the environment enables tracing."""
    return directory() is not None


def current() -> Tracer | None:
    """Return this process's tracer, creating it at the first call.

    Returns:
        None if tracing is off or no ring can be created; the latter is reported once.
    """
    global _tracer, _failed
    if _tracer is not None or _failed:
        return _tracer
    with _lock:
        if _tracer is not None or _failed:
            return _tracer
        where = directory()
        if where is None:
            return None
        rank, world_size = identity.rank_from_environment()
        try:
            _tracer = Tracer(
                where, rank=rank, world_size=world_size, capacity=_capacity(), details=_described
            )
        except (NcclscopeError, OSError, ValueError) as error:
            _failed = True
            warn_once("session", f"tracing is off in this process: {error}")
            return None
        ring = _tracer.ring
        # One process of the host says it, unless no file leads from there to the rings.
        if ring.moved and (made_here(ring.path.parent) or not ring.pointed):
            warn_once("session", f"rings are in {ring.path.parent}, not {where}: {ring.moved}")
        if native.is_broken():
            why = f"the C core is installed, but {native.why_not()}"
            warn_once("native", f"Python writes the ring: {why}")
        return _tracer


def opened() -> Tracer | None:
    """Return this process's tracer if it exists, without creating it."""
    return _tracer


def describe(**fields: Any) -> None:
    """Add to the process description in the ring, now or when the ring is created."""
    with _lock:
        _described.update(fields)
        if _tracer is not None:
            _tracer.describe(**fields)


def on_reset(action: Callable[[], None]) -> None:
    """Call `action` in the child after each fork, for code that caches tracer data."""
    _resets.append(action)


def _capacity() -> int:
    text = variable("RECORDS")
    if not text:
        return layout.DEFAULT_CAPACITY
    try:
        return max(layout.MIN_CAPACITY, min(int(text), 1 << 28))
    except ValueError:
        warn_once("capacity", f"NCCLSCOPE_RECORDS={text!r} is not a number; using the default")
        return layout.DEFAULT_CAPACITY


def _reset() -> None:
    global _tracer, _failed, _lock, generation
    _tracer = None
    _failed = False
    _lock = threading.RLock()
    generation += 1
    for action in _resets:
        action()


os.register_at_fork(after_in_child=_reset)
