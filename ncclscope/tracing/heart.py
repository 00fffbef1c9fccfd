"""Heartbeats: what a process without new calls is doing, for a verdict after its death."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ncclscope.clock import CLOCK, now_ns
from ncclscope.model.activities import ASLEEP, CPU
from ncclscope.procfs import sleeps_until, switches
from ncclscope.ring.activity import Begun, Slot
from ncclscope.ring.layout import HEARTBEAT_SECONDS
from ncclscope.ring.writer import RingWriter
from ncclscope.tracing.started import started_time_ns

__all__ = ["Heart", "keep_beating"]


class Heart:
    """Stores heartbeats in a ring, with what the process has done since its newest call.

    After a kill, its CPU time distinguishes a rank that was busy from one that was blocked, and a
    timed sleep one that was late. The CPU time of processes that it started counts, too. A job that
    moves pays nothing for either: they are noted from the second heartbeat after a call on.

    Args:
        ring: The ring.
        activity: Return the slot of an activity in it.
    """

    def __init__(self, ring: RingWriter, activity: Callable[[str], Slot]) -> None:
        self._ring = ring
        self._activity = activity
        self._position = -1
        self._since = self._used = 0
        self._started: int | None = None
        self._sleep = _Sleep(activity)

    def beat(self) -> None:
        """Store a heartbeat."""
        used, started = time.process_time_ns(), 0
        if self._ring.position != self._position:
            self._position, self._since, self._used = self._ring.position, now_ns(), used
            self._started = None
            self._sleep.end()
        else:
            if self._started is None:
                self._started = started_time_ns()
            else:
                started = max(started_time_ns() - self._started, 0)
            self._sleep.look()
        work = (used - self._used + started) // 1000
        self._activity(CPU).begin(number=work, since=self._since)
        self._ring.store_heartbeat()


class _Sleep:
    """Records the timed sleep that the main thread is in."""

    def __init__(self, activity: Callable[[str], Slot]) -> None:
        self._activity = activity
        self._since = self._until = self._switches = 0
        self._begun: Begun | None = None

    def look(self) -> None:
        """Record a sleep that was there at the last look, and the end of one that was recorded."""
        until, switched = sleeps_until(os.getpid()), switches(os.getpid())
        if not (until and self._until) or switched != self._switches:
            self.end()
            self._since, self._until, self._switches = now_ns(), until, switched
        elif self._begun is None:
            length = max(min(until, self._until) + CLOCK - self._since, 0) // 1_000_000
            self._begun = self._activity(ASLEEP).begin(number=length, since=self._since)

    def end(self) -> None:
        """Record that a sleep has ended, if one was recorded."""
        begun, self._begun, self._until = self._begun, None, 0
        if begun is not None:
            self._activity(ASLEEP).end(begun)


def keep_beating(stop: threading.Event, heart: Heart) -> None:
    """Store a heartbeat each second, until `stop` is set."""
    while not stop.wait(HEARTBEAT_SECONDS):
        heart.beat()
