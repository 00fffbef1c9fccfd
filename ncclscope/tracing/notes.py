"""The slots in which probes note what a process does, and the ring for one that has none yet."""

from __future__ import annotations

import multiprocessing

from ncclscope.ring.activity import Begun, Slot
from ncclscope.tracing import session
from ncclscope.tracing.identity import rank_from_environment
from ncclscope.tracing.tracer import Tracer

Phase = tuple[Slot, Begun]
"""One begin of an activity, and the slot it is in."""


_MOST_DETAILS = 128
"""Details of one activity that are recorded; texts stay in the ring for good."""
_LONGEST = 200


def leave(phase: Phase) -> None:
    """Record that an activity has ended."""
    slot, begun = phase
    slot.end(begun)


def tracer_of_rank() -> Tracer | None:
    """Return this process's tracer; create it only where a launcher started this process as a rank.

    Launchers' own processes and workers of data loaders import torch, too, and get no ring.
    """
    tracer = session.opened()
    if tracer is not None:
        return tracer
    if rank_from_environment()[1] < 2 or multiprocessing.parent_process() is not None:
        return None
    return session.current()


class Notes:
    """The slot of one activity in this process's ring, with a bounded number of details.

    Args:
        name: Name of the activity.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._slot: Slot | None = None
        self._details: set[str] = set()
        session.on_reset(self._forget)

    def slot(self) -> Slot | None:
        """Return the slot; None if this process has no ring."""
        if self._slot is None:
            tracer = tracer_of_rank()
            if tracer is not None:
                self._slot = tracer.activity(self.name)
        return self._slot

    def detail(self, text: str, otherwise: str) -> str:
        """Return a text, or another one where too many different ones were noted before."""
        text = text[:_LONGEST]
        if text not in self._details:
            if len(self._details) >= _MOST_DETAILS:
                return otherwise
            self._details.add(text)
        return text

    def begin(self, text: str, otherwise: str, number: int = 0, since: int = 0) -> Phase | None:
        """Record that the activity begins; for :func:`leave`.

        Args:
            text: What it is about.
            otherwise: Text for where too many different ones were noted before.
            number: A number, as of :meth:`~ncclscope.ring.activity.Slot.begin`.
            since: When it began, nanoseconds since 1970; now by default.

        Returns:
            None if this process has no ring.
        """
        slot = self.slot()
        if slot is None:
            return None
        return slot, slot.begin(self.detail(text, otherwise), number, since)

    def note(self, text: str, otherwise: str, number: int = 0) -> None:
        """Record an activity that takes no time, with the arguments of :meth:`begin`."""
        phase = self.begin(text, otherwise, number)
        if phase is not None:
            leave(phase)

    def _forget(self) -> None:
        """Forget the parent's slot, in the child after a fork."""
        self._slot = None
        self._details.clear()
