"""Members whose record lacks a communicator, or calls, where their peers completed calls.

Such a call needs every member. So the absent member made it, and its record has a gap there: the
description of the communicator or the newest records are damaged, or no probe saw the calls.
Completion is not recorded everywhere. Where processes exited normally, their calls count as
completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import SYMMETRIC_OPS

_NEWEST = 64
"""Calls at the end of a log that are searched for a completed one."""
_ASKED = 4
"""Members with the most calls whose logs are searched."""


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
        completed = any(_has_completed(rank.logs[key]) for rank in members)
        if not completed and not any(_may_have_completed(rank, key) for rank in members):
            continue
        absent = [
            number
            for number in comm.ranks
            if (rank := run.by_rank.get(number)) is not None
            and rank.logs
            and not _has(rank, comm)
            and (completed or rank.ended_well)
            and not _has_joined_since(rank, comm)
        ]
        if absent:
            yield comm, absent


def cut_short(run: Run) -> Iterator[tuple[Communicator, list[int]]]:
    """Yield communicators with the ranks whose record lacks calls that peers completed.

    A record is stored before its call is made, so the end of this record was lost, or the file is
    an older one. That of a living process may have been read before the others.
    """
    if run.window:
        return
    for key, comm in run.communicators.items():
        members = list(run.members(key))
        logs = {rank.rank: rank.logs[key] for rank in members}
        # Where all the others came to their end, so did their calls.
        left = [rank for rank in members if not rank.ended_well]
        well = len(left) == 1 and len(members) > 1
        ended = [
            rank.rank
            for rank in members
            if (rank.exited or rank.alive is False or (well and not rank.alive))
            and rank.logs[key].anchored
        ]
        if comm.creates_groups or not ended:
            continue
        least = min(logs[number].calls for number in ended)
        ahead = nlargest(_ASKED, logs.values(), key=lambda log: log.calls)
        done = [
            call.seq
            for log in ahead
            if log.calls > least and log.anchored
            for call in _newest(log)
            if call.state is State.COMPLETED or (well and log is not logs[left[0].rank])
        ]
        short = [number for number in ended if logs[number].calls < max(done, default=0)]
        if short:
            yield comm, short


def _has(rank: Rank, comm: Communicator) -> bool:
    """Return whether a rank recorded a communicator, also under another key of the same hash."""
    if comm.key in rank.logs:
        return True
    return bool(comm.hash) and any(log.communicator.hash == comm.hash for log in rank.logs.values())


def _has_joined_since(rank: Rank, comm: Communicator) -> bool:
    """Return whether a living rank recorded a communicator after its ring was read.

    Rings are read one after another, and peers may complete calls between the first and the last.
    """
    if rank.again is None:
        return False
    try:
        return _has(rank.again(), comm)
    except (OSError, DamagedFileError):
        return True  # the file is gone or changes; the next reading shows what became of it


def _has_completed(log: CallLog) -> bool:
    return any(call.state is State.COMPLETED for call in _newest(log))


def _may_have_completed(rank: Rank, key: str) -> bool:
    return rank.ended_well and any(True for _ in _newest(rank.logs[key]))


def _newest(log: CallLog) -> Iterator[Call]:
    """Yield the newest calls that need all members."""
    newest = log.span(max(log.first, log.calls + 1 - _NEWEST), log.calls + 1)
    return (call for call in newest if call.op in SYMMETRIC_OPS)
