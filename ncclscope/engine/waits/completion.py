"""Find the first pending call of a log, and whether its completion would be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclscope.model import Call, Rank, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS, CREATION_OPS, P2P_OPS
from ncclscope.model.threads import precedes

PENDING = 512
"""Calls at the end of a log whose states are read."""
NEAR = 8
"""Calls that are read first: in most logs they suffice, and each costs time."""


def first_pending(log: CallLog) -> tuple[Call | None, bool]:
    """Return the first call after the last completed one, and whether any completion is known."""
    lowest = max(log.first, log.calls - PENDING)
    stop, size = log.calls + 1, NEAR
    pending: Call | None = None
    while stop > lowest:
        start = max(lowest, stop - size)
        for call in reversed(log.span(start, stop)):
            if call.state is State.COMPLETED:
                return pending, True
            pending = call
        if size == NEAR and not any(
            log.call(seq).state is State.COMPLETED for seq in {lowest, (lowest + start) // 2}
        ):
            break  # then none of the many earlier calls is completed either
        stop, size = start, 4 * size
    return pending, False


def reports_completion(log: CallLog, call: Call) -> bool:
    """Return whether the log would show the completion of a call.

    On NCCL it shows barriers, which block their caller, and calls that the program waited on; the
    completion of other calls is unknown. On gloo it shows all calls but those that C++ waits for,
    as in the forward of a tensor-parallel layer: the same line then has pending calls before
    completed ones.

    Args:
        log: The log that holds the call.
        call: The first call after the last completed one.
    """
    if call.op in BARRIERS:
        return True
    alike = [
        one
        for one in log.span(max(log.first, call.seq - NEAR), call.seq)
        if (one.op, one.site) == (call.op, call.site) and one.replay is None and not one.captured
    ]
    known = bool(alike) or log.communicator.backend == "gloo"
    return known and all(one.state is State.COMPLETED for one in alike)


def held_in(rank: Rank, log: CallLog) -> Call | None:
    """Return the newest call of a log, where it blocks a thread of its rank: as barriers do."""
    call = log.call(log.calls) if log.first <= log.calls else None
    if call is None or call.state is State.COMPLETED or call.captured or call.replay is not None:
        return None
    if rank.went_on(call) or any(
        precedes(call, transfer) for transfer in rank.last_transfers().values()
    ):
        return None
    is_nccl = "nccl" in log.communicator.backend
    blocks = call.op in BARRIERS or (is_nccl and reports_completion(log, call))
    return call if blocks else None


def was_left(rank: Rank, call: Call) -> bool:
    """Return whether a rank has posted more calls after a group creation, which blocks its caller.

    A creation that raised an exception, which the program caught, ends like this.
    """
    if call.op not in CREATION_OPS:
        return False
    last = rank.last_call(transfers=True)
    return last is not None and last.position > call.position


def last_states(log: CallLog) -> list[Call]:
    """Return the calls that are read from a log to find its rank's pending call."""
    recorder = _ReadRecorder(log)
    pending, known = first_pending(recorder)
    if pending is not None and known:
        reports_completion(recorder, pending)
    if "nccl" in log.communicator.backend and log.first <= log.calls:
        reports_completion(recorder, recorder.call(log.calls))  # as held_in() asks
    return recorder.seen


class _ReadRecorder:
    """A log that records which of its calls are read."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self.seen: list[Call] = []

    def span(self, start: int, stop: int) -> Sequence[Call]:
        found = self._log.span(start, stop)
        self.seen += found
        return found

    def call(self, seq: int) -> Call:
        self.seen.append(self._log.call(seq))
        return self.seen[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def is_in_transfer(rank: Rank) -> bool:
    """Return whether a rank's newest call is a send or receive that is not known to be complete."""
    last = rank.last_call(transfers=True)
    return last is not None and last.op in P2P_OPS and last.state is not State.COMPLETED
