"""Transfers between engines: one end of each, as its process recorded it.

A transfer is not part of a communicator's sequence. Its two ends are in processes of different
jobs and share an id, such as the prefill engine's name for the request whose KV blocks are moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STATES = ("waiting", "started", "completed", "failed", "expired")
"""The known progress of an end of a transfer, by the number in a ring."""
ENDED = frozenset({"completed", "failed", "expired"})


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of a transfer.

    Attributes:
        id: The id that both ends share.
        engine: Id of the engine that this end belongs to.
        direction: ``recv`` or ``send``.
        state: One of :data:`STATES`.
        request: The own engine's id of the request.
        kind: What is moved: ``kv`` for KV blocks.
        peer: Id of the other engine; empty where this end does not know it.
        host: Host at which the sending engine answers handshakes; empty where there is none.
        port: Port there; 0 where there is none.
        phase: What this end does or waits for, such as ``handshake``, or why it failed.
        blocks: Number of KV blocks; 0 when unknown.
        bytes: Size; 0 when unknown.
        begun_ns: When the end was first recorded, nanoseconds since 1970.
        changed_ns: When its state, phase or deadline last changed.
        deadline_ns: When the sending engine frees the blocks; 0 for never or unknown.
    """

    id: str
    engine: str
    direction: str
    state: str = "waiting"
    request: str = ""
    kind: str = "kv"
    peer: str = ""
    host: str = ""
    port: int = 0
    phase: str = ""
    blocks: int = 0
    bytes: int = 0
    begun_ns: int = 0
    changed_ns: int = 0
    deadline_ns: int = 0

    @property
    def ended(self) -> bool:
        """Whether this end waits for nothing more."""
        return self.state in ENDED

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form for JSON, named as in a trace."""
        return {
            "transfer": self.kind,
            "id": self.id,
            "request": self.request,
            "engine": self.engine,
            "peer": self.peer or None,
            "direction": self.direction,
            "state": self.state,
            "phase": self.phase or None,
            "host": self.host or None,
            "port": self.port or None,
            "blocks": self.blocks or None,
            "bytes": self.bytes or None,
            "begun_ns": self.begun_ns,
            "t_ns": self.changed_ns,
            "deadline_ns": self.deadline_ns or None,
        }
