"""Members whose record lacks a communicator on which their peers completed calls.

Such a call needs every member. So the absent member made it, and its record has a gap there: the
description of the communicator is damaged, or no probe saw the calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclscope.model import Communicator, Rank, Run, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import SYMMETRIC_OPS

__all__ = ["unlogged_members"]

_NEWEST = 64
"""Calls at the end of a log that are searched for a completed one."""


def unlogged_members(run: Run) -> Iterator[tuple[Communicator, list[int]]]:
    """Yield communicators with the ranks whose record lacks them, though they must have joined.

    A window says nothing: a call that has left it may have been the communicator's last.

    Args:
        run: The records; ranks without any log are not reported.
    """
    if run.window:
        return
    for key, comm in run.communicators.items():
        if comm.creates_groups or len(comm.ranks) < 2:
            continue
        members = list(run.members(key))
        if not members or len(members) >= len(comm.ranks):
            continue
        absent = [
            number
            for number in comm.ranks
            if (rank := run.by_rank.get(number)) is not None and rank.logs and not _has(rank, comm)
        ]
        if absent and any(_has_completed(rank.logs[key]) for rank in members):
            yield comm, absent


def _has(rank: Rank, comm: Communicator) -> bool:
    """Return whether a rank recorded a communicator, also under another key of the same hash."""
    if comm.key in rank.logs:
        return True
    return bool(comm.hash) and any(log.communicator.hash == comm.hash for log in rank.logs.values())


def _has_completed(log: CallLog) -> bool:
    newest = log.span(max(log.first, log.calls + 1 - _NEWEST), log.calls + 1)
    return any(call.state is State.COMPLETED and call.op in SYMMETRIC_OPS for call in newest)
