"""The tracer of this process, as the environment asks for it.

Probes call :func:`current` for each communicator they meet, never keeping the tracer
themselves: a forked child has none until it records something of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ncclscope.errors import NcclscopeError
from ncclscope.ring import layout
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
_said: dict[str, Any] = {}
"""What :func:`describe` was given: a ring that is made later says it, too."""

generation = 0
"""Grows with each fork: what was looked up under another number is no longer true."""


def enabled() -> bool:
    """Return whether the environment asks for tracing."""
    return directory() is not None


def current() -> Tracer | None:
    """Return this process's tracer, making it at the first call.

    Returns:
        None when tracing is off or no ring can be made; the latter is said once.
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
                where, rank=rank, world_size=world_size, capacity=_capacity(), details=_said
            )
        except (NcclscopeError, OSError, ValueError) as error:
            _failed = True
            warn_once("session", f"tracing is off in this process: {error}")
            return None
        ring = _tracer.ring
        if ring.moved and not ring.pointed:
            warn_once("session", f"the ring is {ring.path}, not in {where}: {ring.moved}")
        return _tracer


def opened() -> Tracer | None:
    """Return this process's tracer where there is one by now, making none."""
    return _tracer


def describe(**fields: Any) -> None:
    """Add to what the ring says of this process, now or as soon as there is one."""
    with _lock:
        _said.update(fields)
        if _tracer is not None:
            _tracer.describe(**fields)


def on_reset(action: Callable[[], None]) -> None:
    """Has something called in the child after a fork: whatever holds on to the tracer."""
    _resets.append(action)


def _capacity() -> int:
    text = variable("RECORDS")
    if not text:
        return layout.DEFAULT_CAPACITY
    try:
        return max(layout.MIN_CAPACITY, min(int(text), 1 << 28))
    except ValueError:
        warn_once("capacity", f"NCCLSCOPE_RECORDS={text!r} is no number; the default is taken")
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
