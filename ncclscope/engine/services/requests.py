"""Requests that wait: for a scheduler that admits none, or for an answer that does not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.records import Records
from ncclscope.engine.services.unresponsive import silent_seconds
from ncclscope.engine.waits.engine_steps import is_idle
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
        # One that is stopped has no heartbeat either.
        seconds = 0.0 if noted is None else noted.seconds + silent_seconds(records.run, process)
        if noted is not None and seconds >= limit:
            count, longest = count + noted.activity.number, max(longest, seconds)
    return count, longest


def lost_requests(case: Case) -> tuple[int, float, list[Rank]]:
    """Return the open requests of which no engine knows, how long they wait, and the engines.

    All engines of the service wait for requests, and all workers for work, for as long.
    """
    run, (count, seconds) = case.run, open_requests(case)
    engines = [one for one in (*run.others, *run.ranks) if INPUT in one.activities]
    rest = [seconds_of(one, INPUT) or 0.0 for one in engines]
    served = {one.labels.get("engine") for one in engines}
    is_known = not run.missing and all(one.labels.get("engine") in served for one in run.ranks)
    idle = all(is_idle(one) or one in engines for one in run.ranks)
    if count and is_known and idle and min(rest, default=0.0) >= case.live_stall_seconds:
        return count, min(seconds, min(rest)), engines
    return 0, 0.0, []
