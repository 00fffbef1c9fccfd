"""Record what this process's probes cover and what they cannot see.

A rank with fewer recorded calls than its peers appears to have skipped some. So each ring says
which probes were on, and which uses of communication no probe records. Notes made before the
ring exists are in it from the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.tracing import session

ON, ENDED, REFUSED, ABSENT = "on", "ended", "refused", "absent"
"""States of a probe: recording; ended; refused an unknown version; its target is not installed."""

_LONGEST = 300
"""Longest text in characters: a ring has 8 KiB for the whole process description."""
_MOST_PROBES = 48
_MOST_KINDS = 16
_MOST_COMMS = 16

_probes: dict[str, dict[str, str]] = {}
_unseen: dict[str, dict[str, Any]] = {}


def probe(name: str, state: str, why: str = "") -> None:
    """Note whether a probe records.

    Args:
        name: Name of a probe (``c10d``), or of a function that it does not record
            (``pynccl.all_gather``).
        state: ``ON``, ``ENDED``, ``REFUSED`` or ``ABSENT``.
        why: Reason as a sentence; empty if it is on.
    """
    entry = {"state": state, "why": why[:_LONGEST]} if why else {"state": state}
    if _probes.get(name) == entry or (name not in _probes and len(_probes) >= _MOST_PROBES):
        return
    _probes[name] = entry
    session.describe(probes=dict(_probes))


def unseen(kind: str, text: str, comms: Iterable[str] = ()) -> None:
    """Note that the process will use something that no probe records; call it before the use.

    Args:
        kind: Identifier of the use, such as ``ddp``.
        text: One sentence for the user.
        comms: Keys of the communicators concerned; empty if unknown.
    """
    found = _unseen.get(kind)
    keys = list(comms)
    if found is None:
        if len(_unseen) >= _MOST_KINDS:
            return
        entry = {"kind": kind, "text": text[:_LONGEST], "comms": keys, "since_ns": now_ns()}
    else:
        known = found["comms"]
        if not known or (keys and known and set(keys) <= set(known)):
            return
        # If one use names no communicator, or they are too many, it may be any of them.
        keys = [*known, *(key for key in keys if key not in known)] if keys else []
        entry = {**found, "comms": keys if len(keys) <= _MOST_COMMS else []}
    _unseen[kind] = entry
    session.describe(unseen=list(_unseen.values()))


def is_unseen(kind: str, comm: str) -> bool:
    """Return whether a kind of use was noted for a communicator."""
    found = _unseen.get(kind)
    return found is not None and comm in found["comms"]


def _forget_use() -> None:
    """Forget all uses: a forked child has its parent's probes, but no uses yet."""
    _unseen.clear()
    session.describe(unseen=[])


session.on_reset(_forget_use)
