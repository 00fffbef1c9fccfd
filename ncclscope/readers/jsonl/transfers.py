"""Read and write transfers between engines in trace JSONL.

A transfer has one line per state change. A process that waits for a transfer is busy with
something that its collectives do not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ncclscope.model import Transfer
from ncclscope.model.transfer import STATES
from ncclscope.untrusted import number, text

MOST = 1 << 16
"""Maximum number of transfers kept per process."""
_DONE = frozenset({"done", "complete", "finished"})
_LATEST = 1 << 62


class Transfers:
    """The transfers of one trace, each in its newest state."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, str], Transfer] = {}

    def add(self, line: Mapping[str, Any]) -> bool:
        """Add a line; return False if it is of another type, or there are too many transfers."""
        kind = text(line.get("transfer"))
        if kind is None:
            return False
        id_, peer, direction, request = (
            text(line.get(name)) or "" for name in ("id", "peer", "direction", "request")
        )
        key = kind, id_, peer, direction
        known = self._found.pop(key, None)
        if known is None and len(self._found) >= MOST:
            return False
        changed = number(line.get("t_ns"), _LATEST)
        begun = number(line.get("begun_ns"), _LATEST) or changed
        found = Transfer(
            id=id_,
            engine=text(line.get("engine")) or "",
            direction="send" if direction == "send" else "recv",
            state=_state(text(line.get("state")) or ""),
            request=request or id_,
            kind=kind,
            peer=peer,
            host=text(line.get("host")) or "",
            port=number(line.get("port"), 0xFFFF),
            phase=text(line.get("phase")) or "",
            blocks=number(line.get("blocks"), 1 << 32),
            bytes=number(line.get("bytes"), _LATEST),
            begun_ns=begun,
            changed_ns=changed,
            deadline_ns=number(line.get("deadline_ns"), _LATEST),
        )
        if known is not None and not known.ended:
            found = replace(found, begun_ns=known.begun_ns)
        self._found[key] = found
        return True

    def all(self) -> tuple[Transfer, ...]:
        """Return the transfers in the order of their last change."""
        return tuple(self._found.values())


def _state(word: str) -> str:
    if word in STATES:
        return word
    return "completed" if word in _DONE else "started"


def line_of(transfer: Transfer) -> dict[str, Any]:
    """Return the line of a transfer, without what is not known."""
    return {name: value for name, value in transfer.to_dict().items() if value is not None}


def add_waiting(details: Mapping[str, Any], transfers: Iterable[Transfer]) -> dict[str, Any]:
    """Return a process's details with the transfers that it waits for."""
    waiting = [one for one in transfers if one.state == "waiting"]
    if not waiting:
        return dict(details)
    first = waiting[0]
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    peer = f" {'from' if first.direction == 'recv' else 'to'} {first.peer}" if first.peer else ""
    state = f"waits for the {first.kind} transfer {first.id}{peer}{more}"
    entry: dict[str, Any] = {"kind": "transfer", "text": state, "comms": [], "since_ns": None}
    return {**details, "unseen": [*details.get("unseen", ()), entry]}
