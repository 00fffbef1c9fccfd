"""Read the transfers between engines that a ring holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ncclscope.model import Transfer
from ncclscope.ring.image import RingImage
from ncclscope.ring.transfers import unpack_transfer
from ncclscope.untrusted import printable

_ATTEMPTS = 3
_TEXTS = ("id", "request", "engine", "peer", "host", "phase")


def engine_transfers(ring: RingImage) -> tuple[Transfer, ...]:
    """Return the ends of transfers in the order of their last change.

    An entry that is being written while it is read is read again.
    """
    found: dict[int, tuple[int, Transfer]] = {}
    for _ in range(_ATTEMPTS):
        torn = False
        for place, entry in enumerate(ring.read_transfers()):
            if place in found or not entry.strip(b"\0"):
                continue
            read = unpack_transfer(entry)
            if read is None:
                torn = True
            elif read[1].id and read[1].engine:
                found[place] = read[0], _shifted(ring, _printable(read[1]))
        if not torn:
            break
    return tuple(transfer for _, transfer in sorted(found.values(), key=lambda one: one[0]))


def _printable(transfer: Transfer) -> Transfer:
    texts: dict[str, Any] = {name: printable(getattr(transfer, name)) for name in _TEXTS}
    return replace(transfer, **texts)


def _shifted(ring: RingImage, transfer: Transfer) -> Transfer:
    return replace(
        transfer,
        begun_ns=ring.shifted(transfer.begun_ns),
        changed_ns=ring.shifted(transfer.changed_ns),
        deadline_ns=ring.shifted(transfer.deadline_ns),
    )


def lost_transfers(ring: RingImage) -> list[dict[str, Any]]:
    """Return an entry of what is not recorded, if transfers found no room."""
    lost = ring.transfers_lost
    if not lost:
        return []
    what = f"{lost} transfers between engines are not recorded: too many were unfinished"
    return [{"kind": "transfer", "text": what, "comms": [], "since_ns": None}]
