"""How processes ended: whether peers wait because of it, or it merely stopped the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclscope.model import Rank

if TYPE_CHECKING:
    from ncclscope.analysis.records import Records

__all__ = ["interrupted_after"]

_INTERRUPTS = ("KeyboardInterrupt", "SignalException")
"""The exceptions that end a process when a signal is sent to the whole job."""


def interrupted_after(records: Records, rank: Rank) -> float | None:
    """Return how long peers had waited when a signal to the job ended a rank.

    Ctrl-C reaches all ranks. It ends a rank that runs Python code; ranks that wait in a collective
    live on until they are killed. They do not wait because that rank ended.

    Args:
        records: The records.
        rank: The rank that ended.

    Returns:
        Seconds from the last call of the rank to its end; None where no signal ended it, or
        no rank had waited for it by then.
    """
    error = str(rank.details.get("ended_with") or "")
    if not error.startswith(_INTERRUPTS):
        return None
    quiet = records.quiet_seconds(rank)
    return quiet if quiet is not None and quiet >= records.stall_seconds else None
