"""Requests that wait: for a scheduler that admits none, or for an answer that does not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.records import Records
from ncclscope.engine.waits.noted import lasting, seconds_of
from ncclscope.model import Rank, Run
from ncclscope.model.activities import INPUT, PAUSED, REQUESTS, UNSCHEDULED

_REST_SECONDS = 2.0
"""An engine that takes requests in between two steps does so for some milliseconds."""


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
    """Yield the engines that have scheduled nothing, for however long.

    One that is paused is none, nor one that waits for requests: it has none that it could schedule.
    """
    for engine in (*run.others, *run.ranks):
        noted = lasting(engine, UNSCHEDULED)
        rests = (seconds_of(engine, INPUT) or 0.0) >= _REST_SECONDS
        if noted is not None and not rests and lasting(engine, PAUSED) is None:
            activity = noted.activity
            yield Unscheduled(engine, noted.seconds, activity.number, activity.detail or "")


def paused(run: Run) -> list[tuple[Rank, float]]:
    """Return the engines, and for how many seconds their schedulers are paused.

    Empty where one of them is not: the requests may wait in that one.
    """
    processes = (*run.others, *run.ranks)
    found = [(one, noted.seconds) for one in processes if (noted := lasting(one, PAUSED))]
    engines = [one for one in run.others if "engine" in one.labels]
    return found if all(any(one is each for each, _ in found) for one in engines) else []


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
