"""Poll what processes wait for before their calls, and say when it needs a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Run
from ncclscope.model.activities import COMM_INIT, INIT, STORE_WAIT
from ncclscope.readers.ring.cursor import RingCursor

PATIENCE = 6
"""Ranks may wait for this multiple of a call's seconds at start-up: imports differ by as much."""

POLL_SECONDS = 1.0
_WAITS = frozenset({COMM_INIT, INIT, STORE_WAIT})
_Open = tuple[tuple[int, int], ...]


class StartupWatch:
    """Processes in ``init_process_group``, ``ncclCommInitRank`` or at a store.

    They are in no call, so that no call of theirs is ever late.

    Args:
        stall: Seconds after which a wait is examined.
    """

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._polled_at = -POLL_SECONDS
        self._known: dict[Path, tuple[_Open, frozenset[str]]] = {}
        self._settled: frozenset[object] = frozenset()
        self._partners: list[RingCursor] = []

    def is_due(
        self, living: Sequence[RingCursor], past: Sequence[RingCursor], now: float, wall_ns: int
    ) -> bool:
        """Return whether processes wait, or wait no longer, that were not examined as such.

        Args:
            living: Cursors of running jobs.
            past: Cursors of ended jobs.
            now: Seconds by the watcher's clock.
            wall_ns: Nanoseconds since 1970 at the same moment.
        """
        here = [cursor for cursor in living if not cursor.over]
        self._partners = [cursor for cursor in past if _is_of(cursor, here)]
        if now - self._polled_at < POLL_SECONDS:
            return False
        self._polled_at = now
        moves = any(cursor.head and now - cursor.moved_at < self._stall for cursor in here)
        waiting = [] if moves else [c for c in here if self._waits(c, wall_ns)]
        signature = frozenset({*waiting, *self._partners} if waiting else ())
        due = signature != self._settled
        self._settled = signature
        return due

    @property
    def partners(self) -> list[RingCursor]:
        """Cursors of processes of the same run that ended before they had a communicator."""
        return self._partners

    def _waits(self, cursor: RingCursor, wall_ns: int) -> bool:
        """Return whether a process has waited for too long, or asked a store again and again."""
        old = wall_ns - int(self._stall * 1e9)
        found = tuple(one for one in cursor.waits(wall_ns) if one[0] <= old)
        if not found:
            return False
        # An idle server waits for requests for hours: names are read once.
        known, names = self._known.get(cursor.path, ((), frozenset()))
        if known != found:
            rank = cursor.read()
            activities = {} if rank is None else rank.activities
            since = {when for when, _ in found}
            names = frozenset(n for n, one in activities.items() if one.since_ns in since)
            self._known[cursor.path] = found, names
        return bool(names & _WAITS)


def patient_verdict(run: Run, stall: float) -> Verdict:
    """Return the verdict on a running job, with more patience at start-up.

    Args:
        run: The records.
        stall: Seconds after which a call counts as stuck.
    """
    verdict = diagnose(run, live_stall_seconds=stall)
    if verdict.cause is not None and verdict.cause.kind == "init_stalled":
        verdict = diagnose(run, live_stall_seconds=PATIENCE * stall)
    return verdict


def _is_of(cursor: RingCursor, living: Sequence[RingCursor]) -> bool:
    """Return whether an ended process without communicators belongs to a running job."""
    run = cursor.about.get("run")
    if cursor.comm_cursors or cursor.rank < 0 or run is None:
        return False
    return cursor.rank not in {one.rank for one in living} and any(
        one.about.get("run") == run for one in living
    )
