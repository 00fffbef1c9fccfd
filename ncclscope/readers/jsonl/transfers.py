"""Transfers between jobs in trace JSONL: what a process still waits for.

A transfer has a line for each state that it comes to. Which side holds it up is not compared
here; a process that waits for one does something that its calls do not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ncclscope.untrusted import text

__all__ = ["MOST", "TransferRecord", "add_waiting", "read"]

MOST = 1 << 16
"""Transfers of one process that are kept."""


class TransferRecord(NamedTuple):
    """A transfer, known by what is the same in all of its lines."""

    kind: str
    request: str
    peer: str
    direction: str


def read(line: Mapping[str, Any]) -> tuple[TransferRecord, str] | None:
    """Return the transfer of a line, and the state that it has come to; None for another line."""
    kind = text(line.get("transfer"))
    if kind is None:
        return None
    request, peer, direction, state = (
        text(line.get(name)) or "" for name in ("id", "peer", "direction", "state")
    )
    return TransferRecord(kind, request, peer, direction), state


def add_waiting(details: Mapping[str, Any], states: Mapping[TransferRecord, str]) -> dict[str, Any]:
    """Return what an input says of a process, with the transfers that it waits for."""
    waiting = [transfer for transfer, state in states.items() if state == "waiting"]
    if not waiting:
        return dict(details)
    first = waiting[0]
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    peer = f" {'from' if first.direction == 'recv' else 'to'} {first.peer}" if first.peer else ""
    said = f"waits for the {first.kind} transfer {first.request}{peer}{more}"
    entry: dict[str, Any] = {"kind": "transfer", "text": said, "comms": [], "since_ns": None}
    return {**details, "unseen": [*details.get("unseen", ()), entry]}
