"""Poll the transfers between engines, and say when one needs a diagnosis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from ncclscope import procfs
from ncclscope.errors import DamagedFileError
from ncclscope.model import Transfer
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.readers.ring.transfers import engine_transfers
from ncclscope.ring.image import RingImage

POLL_SECONDS = 1.0


class TransferWatch:
    """The unfinished and failed transfers of the polled rings.

    Args:
        stall: Seconds without a change after which a transfer is examined.
    """

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._polled_at = -POLL_SECONDS
        self._partners: list[RingCursor] = []
        self._settled: object = ()

    def is_due(
        self, living: Sequence[RingCursor], past: Sequence[RingCursor], now: float, wall_ns: int
    ) -> bool:
        """Return whether a transfer is in a state that was not examined yet.

        Args:
            living: Cursors of running jobs.
            past: Cursors of ended jobs.
            now: Seconds by the watcher's clock.
            wall_ns: Nanoseconds since 1970 at the same moment.
        """
        if now - self._polled_at < POLL_SECONDS:
            return False
        self._polled_at = now
        here = [(cursor, one) for cursor in living for one in _transfers(cursor)]
        unfinished = [(cursor, one) for cursor, one in here if not one.ended]
        asked = {one.peer for _, one in here if one.peer and one.state != "completed"}
        self._partners = [cursor for cursor in past if asked and _engines([cursor]) & asked]
        old = wall_ns - int(self._stall * 1e9)
        signature = (
            {(str(cursor.path), one.id) for cursor, one in unfinished if one.begun_ns <= old},
            {(str(cursor.path), one.id) for cursor, one in here if one.state == "failed"},
            {(str(cursor.path), one.id) for cursor, one in here if one.state == "expired"},
            _stopped(living) if unfinished else set(),
            {str(cursor.path) for cursor in self._partners},
        )
        due = any(signature) and signature != self._settled
        self._settled = signature
        return due

    @property
    def partners(self) -> list[RingCursor]:
        """Cursors of ended processes from which running ones still expect transfers."""
        return self._partners


def _transfers(cursor: RingCursor) -> tuple[Transfer, ...]:
    if not cursor.is_local:
        return ()
    with contextlib.suppress(DamagedFileError, OSError), RingImage(cursor.path) as ring:
        return engine_transfers(ring)
    return ()


def _stopped(cursors: Iterable[RingCursor]) -> set[int]:
    return {one.pid for one in cursors if one.is_local and procfs.is_stopped(one.pid)}


def _engines(cursors: Iterable[RingCursor]) -> set[str]:
    return {one.engine for cursor in cursors for one in _transfers(cursor)}
