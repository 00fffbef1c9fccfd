"""Which record a ``Work`` belongs to, so that waiting for it tells that the call completed.

Functional collectives have no ``Work`` in Python: there it is the result tensor that
somebody waits for, which is kept in the same way.
"""

from __future__ import annotations

import weakref
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.probes.recording import Handle

__all__ = ["LIMIT", "Posted", "expect", "find", "pending", "settle"]

LIMIT = 4096
"""Works that nobody ever waits for must not pile up."""


Posted = tuple[Handle, int, bool]
"""A call that has been posted: where it was recorded, the position of its record, and
whether the return of ``wait()`` means that it has completed."""

pending: dict[int, tuple[weakref.ref[Any], Posted]] = {}
"""By identity of the work, for as long as nobody has waited for it."""
session.on_reset(pending.clear)


def expect(posted: Posted, work: Any) -> None:
    """Note what a call returned. None means that it was waited for on the way."""
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
    # The identity may have been given to something new.
    return None if entry is None or entry[0]() is not work else entry[1]


def settle(posted: Posted, work: Any) -> None:
    """Note that a call has completed."""
    handle, position, _ = posted
    handle.complete(position)
    pending.pop(id(work), None)


def _prune() -> None:
    for number in [number for number, entry in list(pending.items()) if entry[0]() is None]:
        pending.pop(number, None)
    if len(pending) >= LIMIT:
        pending.clear()
