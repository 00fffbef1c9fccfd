"""Read transfers between jobs from trace JSONL, and find those that a process waits for.

A transfer has one line per state change. This module does not decide which side delays it. A
process that waits for a transfer is busy with something that its collectives do not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ncclscope.untrusted import text

__all__ = ["MOST", "TransferRecord", "add_waiting", "read"]

MOST = 1 << 16
"""Maximum number of transfers kept per process."""


class TransferRecord(NamedTuple):
    """A transfer, identified by the fields that all its lines share."""

    kind: str
    request: str
    peer: str
    direction: str


def read(line: Mapping[str, Any]) -> tuple[TransferRecord, str] | None:
    """Return the transfer and state of a line; None for a line of another type."""
    kind = text(line.get("transfer"))
    if kind is None:
        return None
    request, peer, direction, state = (
        text(line.get(name)) or "" for name in ("id", "peer", "direction", "state")
    )
    return TransferRecord(kind, request, peer, direction), state


def add_waiting(details: Mapping[str, Any], states: Mapping[TransferRecord, str]) -> dict[str, Any]:
    """Return a process's details with the transfers that it waits for."""
    waiting = [transfer for transfer, state in states.items() if state == "waiting"]
    if not waiting:
        return dict(details)
    first = waiting[0]
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    peer = f" {'from' if first.direction == 'recv' else 'to'} {first.peer}" if first.peer else ""
    state = f"waits for the {first.kind} transfer {first.request}{peer}{more}"
    entry: dict[str, Any] = {"kind": "transfer", "text": state, "comms": [], "since_ns": None}
    return {**details, "unseen": [*details.get("unseen", ()), entry]}
