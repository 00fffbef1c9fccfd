"""What the probes of this process record and what they cannot see, as its ring says it.

A rank of which less is recorded than of its peers looks as if it had left calls out. So each
ring says which probes were on, and what the process used that no probe records. What is noted
before there is a ring is in it from the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ncclscope.tracing import session

__all__ = ["ABSENT", "ENDED", "ON", "REFUSED", "is_unseen", "probe", "unseen"]

ON, ENDED, REFUSED, ABSENT = "on", "ended", "refused", "absent"
"""States of a probe: it records; it did; what it found is not what it knows; nothing is there."""

_LONGEST = 300
"""Characters of a text: a ring has 8 KiB for all that a process says of itself."""
_MOST_PROBES = 48
_MOST_KINDS = 16
_MOST_COMMS = 16

_probes: dict[str, dict[str, str]] = {}
_unseen: dict[str, dict[str, Any]] = {}


def probe(name: str, state: str, why: str = "") -> None:
    """Note whether a probe records.

    Args:
        name: Of a probe, ``c10d``, or of one function that it does not record,
            ``pynccl.all_gather``.
        state: ``ON``, ``ENDED``, ``REFUSED`` or ``ABSENT``.
        why: A sentence for a person; nothing where it is on.
    """
    entry = {"state": state, "why": why[:_LONGEST]} if why else {"state": state}
    if _probes.get(name) == entry or (name not in _probes and len(_probes) >= _MOST_PROBES):
        return
    _probes[name] = entry
    session.describe(probes=dict(_probes))


def unseen(kind: str, text: str, comms: Iterable[str] = ()) -> None:
    """Note that the process uses something that no probe records; to be called before it does.

    Args:
        kind: A word for programs, such as ``ddp``: what it is.
        text: One sentence for a person.
        comms: Keys of the communicators concerned; none where that is not known.
    """
    found = _unseen.get(kind)
    keys = list(comms)
    if found is None:
        if len(_unseen) >= _MOST_KINDS:
            return
        entry = {"kind": kind, "text": text[:_LONGEST], "comms": keys, "since_ns": time.time_ns()}
    else:
        known = found["comms"]
        if not known or (keys and known and set(keys) <= set(known)):
            return
        # Once it is not known for one use, or there are too many, it may be any of them.
        keys = [*known, *(key for key in keys if key not in known)] if keys else []
        entry = {**found, "comms": keys if len(keys) <= _MOST_COMMS else []}
    _unseen[kind] = entry
    session.describe(unseen=list(_unseen.values()))


def is_unseen(kind: str, comm: str) -> bool:
    """Return whether a kind of use was noted for a communicator."""
    found = _unseen.get(kind)
    return found is not None and comm in found["comms"]


def _forget_use() -> None:
    """Return a forked child has the probes of its parent, and uses nothing yet."""
    _unseen.clear()
    session.describe(unseen=[])


session.on_reset(_forget_use)
