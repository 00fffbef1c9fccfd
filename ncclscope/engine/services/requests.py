"""Requests that wait: for a scheduler that admits none, or for an answer that does not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.records import Records
from ncclscope.engine.waits.noted import lasting
from ncclscope.model import Rank, Run
from ncclscope.model.activities import PAUSED, REQUESTS, UNSCHEDULED


@dataclass(frozen=True)
class Unscheduled:
    """An engine that has scheduled no token, though requests wait.

    Attributes:
        engine: The engine core.
        seconds: For how long, up to its last heartbeat.
        requests: How many could be scheduled.
        counts: What its scheduler counts, in words; empty where that is not known.
    """

    engine: Rank
    seconds: float
    requests: int
    counts: str


def unscheduled(run: Run) -> Iterator[Unscheduled]:
    """Yield the engines that have scheduled nothing, for however long; paused ones are none."""
    for engine in (*run.others, *run.ranks):
        noted = lasting(engine, UNSCHEDULED)
        if noted is not None and lasting(engine, PAUSED) is None:
            activity = noted.activity
            yield Unscheduled(engine, noted.seconds, activity.number, activity.detail or "")


def paused(run: Run) -> Iterator[tuple[Rank, float]]:
    """Yield the engines whose schedulers are paused, and for how many seconds."""
    for engine in (*run.others, *run.ranks):
        noted = lasting(engine, PAUSED)
        if noted is not None:
            yield engine, noted.seconds


def open_requests(records: Records) -> tuple[int, float]:
    """Return how many requests have had no part of an answer for as long as a hang lasts.

    Returns:
        Their number, and the seconds since the newest part of an answer to any of them; 0 and 0.0
        without any.
    """
    limit, count, longest = records.live_stall_seconds, 0, 0.0
    for process in (*records.run.others, *records.run.ranks):
        noted = lasting(process, REQUESTS)
        if noted is not None and noted.seconds >= limit:
            count, longest = count + noted.activity.number, max(longest, noted.seconds)
    return count, longest


def stopped(run: Run) -> list[Rank]:
    """Return the processes that a signal has stopped, which answer nobody."""
    return [one for one in (*run.ranks, *run.others) if one.details.get("stopped")]
