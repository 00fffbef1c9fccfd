"""Engines that wait for each other in collectives of their own, and engines that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.waits.engine_steps import engine_cores
from ncclscope.engine.waits.graph import waiting_in_calls
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.activities import RAISED, WORKER_DIED

_SEEN_DEAD = "EngineDeadError"
"""What a server raises that finds its engine dead."""
_SHORTLY_NS = 10_000_000_000


@dataclass(frozen=True)
class Apart:
    """A call of engines that some have posted, and wait in, and others have not.

    Attributes:
        comm: The group of the engines.
        call: The call.
        waiting: The engines that wait in it.
        absent: Those that posted fewer calls there.
        seconds: How long the last of the waiting ones has waited, up to its last heartbeat.
    """

    comm: Communicator
    call: Call
    waiting: tuple[Rank, ...]
    absent: tuple[Rank, ...]
    seconds: float


def engines_apart(case: Case) -> Iterator[Apart]:
    """Yield the calls in which engines wait for others, where no worker waits in a collective."""
    if not any("engine" in one.labels and one.logs for one in case.run.others):
        return
    if waiting_in_calls(case):
        return
    groups: dict[str, list[Rank]] = {}
    for process in case.run.others:
        if "engine" in process.labels:
            for key in process.logs:
                groups.setdefault(key, []).append(process)
    for key, members in groups.items():
        made = {one.pid: one.logs[key].calls for one in members}
        most = max(made.values())
        waiting = [one for one in members if made[one.pid] == most and _waits(one, key)]
        absent = [one for one in members if made[one.pid] < most]
        last = [one.logs[key].call(most) for one in waiting]
        if waiting and absent:
            since = max(call.time_ns or 0 for call in last)
            seen = max(one.last_seen_ns or 0 for one in waiting)
            comm = waiting[0].logs[key].communicator
            seconds = max(0.0, (seen - since) / 1e9)
            yield Apart(comm, last[0], tuple(waiting), tuple(absent), seconds)


def _waits(engine: Rank, key: str) -> bool:
    log = engine.logs[key]
    return log.calls >= log.first and log.call(log.calls).state is not State.COMPLETED


def engines_gone(run: Run) -> list[Rank]:
    """Return the engines that recorded no end, and that a worker of theirs has outlived.

    It still runs, or it ended in order and their server found them dead; so it did if the worker
    runs in the engine itself. Who kills a whole service leaves neither.
    """
    errors = [one.activities[RAISED].detail or "" for one in run.others if RAISED in one.activities]
    is_seen = any(error.startswith(_SEEN_DEAD) for error in errors)
    found = []
    for one in engine_cores(run):
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == _label(one)]
        is_gone = one.alive is False and not (one.exited or one.details.get("ended_with"))
        alone = workers == [one]
        if is_gone and any(r.alive or (is_seen and (r.exited or alone)) for r in workers):
            found.append(one)
    return found


@dataclass(frozen=True)
class Fallen:
    """An engine that an exception ended, as its server found.

    Attributes:
        engine: The engine.
        worker: A worker of it that had raised an exception shortly before; None without one.
        server: The process that found it dead.
    """

    engine: Rank
    worker: Rank | None
    server: Rank


def engines_fallen(run: Run) -> list[Fallen]:
    """Return the engines that exceptions ended, in the order of these.

    A server that ends in order finds its engines gone as well, but none of them raised anything.
    """
    servers = [one for one in run.others if (_raised(one)[0] or "").startswith(_SEEN_DEAD)]
    found = []
    for engine in run.others:
        server = next((one for one in servers if raised_before(engine, one)), None)
        if "engine" in engine.labels and server is not None:
            own = (rank for rank in run.ranks if rank.labels.get("engine") == _label(engine))
            worker = next((rank for rank in own if raised_before(rank, engine)), None)
            # One whose worker was killed raises an exception, too.
            if worker is not None or WORKER_DIED not in engine.activities:
                found.append(Fallen(engine, worker, server))
    return sorted(found, key=lambda one: _raised(one.worker or one.engine)[1])


def raised_before(one: Rank, other: Rank) -> bool:
    """Return whether an exception of a process comes shortly before that of another one.

    vLLM's worker answers with its error, for which the engine raises another one, and its server a
    third.
    """
    first, second = one.activities.get(RAISED), other.activities.get(RAISED)
    if first is None or second is None or one is other:
        return False
    return 0 <= second.since_ns - first.since_ns < _SHORTLY_NS


def _raised(process: Rank) -> tuple[str | None, int]:
    noted = process.activities.get(RAISED)
    return (None, 0) if noted is None else (noted.detail, noted.since_ns)


def _label(engine: Rank) -> str:
    """Return the label of an engine; that of no worker for another process."""
    return engine.labels.get("engine", "?")
