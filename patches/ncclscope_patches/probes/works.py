"""Map each ``Work`` to its record, so that a wait for it marks the call as completed.

Functional collectives have no ``Work`` in Python. The program waits for their result tensor
instead, which is mapped in the same way.
"""

from __future__ import annotations

import weakref
from typing import Any

from ncclscope import native
from ncclscope.tracing import session
from ncclscope_patches.probes.recording import Handle

LIMIT = 4096
"""Most works to keep: a program may never wait for some of them."""


Posted = tuple[Handle, int, bool]
"""An enqueued call: its handle, the position of its record, and whether the return of ``wait()``
means that it has completed."""

pending: dict[int, tuple[weakref.ref[Any], Posted]] = native.by_address()
"""Enqueued calls by identity of their work, until the program waits for it."""
session.on_reset(pending.clear)


def expect(posted: Posted, work: Any) -> None:
    """Note what a call returned; None means that it was synchronous."""
    if work is None:
        handle, position, waits = posted
        if waits:
            handle.complete(position)
        return
    if len(pending) >= LIMIT:
        _prune()
    pending[id(work)] = (weakref.ref(work), posted)


def find(work: Any) -> Posted | None:
    """Return the call that a work or a result belongs to."""
    entry = pending.get(id(work))
    # A new object may have the same id.
    return None if entry is None or entry[0]() is not work else entry[1]


def settle(posted: Posted, work: Any) -> None:
    """Record that a call has completed."""
    handle, position, _ = posted
    handle.complete(position)
    pending.pop(id(work), None)


def _prune() -> None:
    for number in [number for number, entry in list(pending.items()) if entry[0]() is None]:
        pending.pop(number, None)
    if len(pending) >= LIMIT:
        pending.clear()
