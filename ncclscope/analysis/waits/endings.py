"""How processes ended: whether an end is why peers wait, or how the job was stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclscope.model import Rank

if TYPE_CHECKING:
    from ncclscope.analysis.records import Records

__all__ = ["interrupted_after"]

_INTERRUPTS = ("KeyboardInterrupt", "SignalException")
"""How a process ends by a signal that somebody sends to the whole job."""


def interrupted_after(records: Records, rank: Rank) -> float | None:
    """Return how long peers had waited when a signal to the job ended a rank.

    Ctrl-C reaches all ranks. One that is in Python ends by it; those that wait in a collective
    live on until somebody kills them. Its end is then not what they wait for.

    Args:
        records: What was recorded.
        rank: The rank that ended.

    Returns:
        Seconds from the last call of the rank to its end; None where no signal ended it, or
        nobody had waited for it by then.
    """
    said = str(rank.details.get("ended_with") or "")
    if not said.startswith(_INTERRUPTS):
        return None
    quiet = records.quiet_seconds(rank)
    return quiet if quiet is not None and quiet >= records.stall_seconds else None
