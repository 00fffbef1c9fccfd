"""How far the calls of a log are known to have come, and whether that could be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclscope.model import Call, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS

__all__ = ["first_pending", "last_states", "tells_of"]

PENDING = 512
"""Calls at the end of a log that are looked at for their state."""
NEAR = 8
"""Those that are looked at first. In most logs they say enough, and each costs time."""


def first_pending(log: CallLog) -> tuple[Call | None, bool]:
    """Returns the first call after the last that completed, and whether any is known to have."""
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
            break  # nor does any of the many before it
        stop, size = start, 4 * size
    return pending, False


def tells_of(log: CallLog, call: Call) -> bool:
    """Whether a call would be known to have completed, if it had.

    On NCCL a barrier is, which holds its caller, and what the program has asked after; and of
    the calls between them nothing is known.

    Args:
        log: Where it is.
        call: The first after the last that completed.
    """
    if log.communicator.backend == "gloo" or call.op in BARRIERS:
        return True
    before = [
        one
        for one in log.span(max(log.first, call.seq - NEAR), call.seq)
        if one.op not in BARRIERS and one.replay is None and not one.captured
    ]
    alike = [one for one in before if one.op == call.op] or before
    return bool(alike) and all(one.state is State.COMPLETED for one in alike)


def last_states(log: CallLog) -> list[Call]:
    """Returns the calls that are looked at in any log to find where its rank stands."""
    noting = _Noting(log)
    pending, told = first_pending(noting)
    if pending is not None and told:
        tells_of(noting, pending)
    return noting.seen


class _Noting:
    """A log that notes what is asked of it."""

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
