"""Processes of a service that answer nobody, and the workers that get no work for that reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import Motion, read_motions, read_servers
from ncclscope.engine.records import DEAD_SECONDS, Records
from ncclscope.engine.waits.engine_steps import is_idle, schedules_itself
from ncclscope.engine.waits.noted import lasting, seconds_of
from ncclscope.model import Rank, Run
from ncclscope.model.activities import INPUT, LOOP
from ncclscope.model.metadata import COORDINATOR, FRONTEND, SERVICE
from ncclscope.model.snapshot import Worker
from ncclscope.wording.notes import Unheard

_LOOPS = re.compile(r"(?:^|/)(?:asyncio|uvloop)/")
"""Files of event loops."""


@dataclass(frozen=True)
class Unresponsive:
    """A process that answers nobody.

    Attributes:
        process: The process.
        how: What is known of it.
        seconds: For how long; 0.0 where that is not known.
    """

    process: Rank
    how: Unheard
    seconds: float = 0.0


def unresponsive(records: Records) -> list[Unresponsive]:
    """Return the processes that a signal has stopped, or that have been blocked or silent.

    Silent for as long as a hang lasts: rings are copied one after the other.
    """
    return [*_unresponsive(records)]


def _unresponsive(records: Records) -> Iterator[Unresponsive]:
    run = records.run
    is_over = not any(one.alive for one in (*run.ranks, *run.others))
    for one in (*run.ranks, *run.others):
        blocked, silent = seconds_of(one, LOOP) or 0.0, silent_seconds(run, one)
        if one.details.get("stopped"):
            yield Unresponsive(one, Unheard.STOPPED, silent)
        elif blocked >= records.live_stall_seconds:
            yield Unresponsive(one, Unheard.BLOCKED, blocked)
        elif is_over and silent >= records.live_stall_seconds and _may_be_missed(one):
            yield Unresponsive(one, Unheard.SILENT, silent)
    if run.snapshot is None:
        return
    known = {one.pid for one in (*run.ranks, *run.others) if one.details.get("stopped")}
    for seen in (*read_motions(run.snapshot).values(), *read_servers(run.snapshot)):
        if seen.condition == "stopped" and seen.worker.pid not in known:
            rank = run.by_rank.get(seen.worker.rank)
            yield Unresponsive(rank or as_process(seen.worker), Unheard.STOPPED)
    recorded = {one.pid for one in run.others if LOOP in one.activities}
    for seen in read_servers(run.snapshot):
        is_new = seen.worker.pid not in recorded and is_held(seen)
        if is_new and run.snapshot.gap >= records.live_stall_seconds:
            yield Unresponsive(as_process(seen.worker), Unheard.BLOCKED, run.snapshot.gap)


def is_held(server: Motion) -> bool:
    """Return whether stacks show that a server's event loop is blocked.

    A program that has an engine, and no server, runs no event loop.
    """
    is_still = server.condition == "still" and server.is_at_one_line and server.waits != "queue"
    return is_still and any(_LOOPS.search(frame.file) for frame in server.frames)


def as_process(seen: Worker) -> Rank:
    """Return a server without a record as a process."""
    role = COORDINATOR if seen.title.partition("::")[2].startswith("DPCoord") else FRONTEND
    return Rank(-1, host=seen.host, pid=seen.pid, details={"role": role})


def _may_be_missed(process: Rank) -> bool:
    """Return whether a process recorded no end, and others of a service need it.

    Of ranks, only those without work count here: others may wait for each other.
    """
    if process.exited or any(process.details.get(name) for name in ("ended_with", "beating")):
        return False
    serves = process.details.get("role") in SERVICE or "engine" in process.labels
    return is_idle(process) or schedules_itself(process) if process.rank >= 0 else serves


def silent_seconds(run: Run, process: Rank) -> float:
    """Return for how long others of its host lived on after the last heartbeat of a process.

    Who kills a whole job ends all of them at once: at least as many lived on as did not.
    """
    boot, seen = process.details.get("boot_id"), process.last_seen_ns
    if not boot or seen is None:
        return 0.0
    ends = [
        one.last_seen_ns - seen
        for one in (*run.ranks, *run.others)
        if one.last_seen_ns is not None and one.details.get("boot_id") == boot
    ]
    later = [one for one in ends if one >= DEAD_SECONDS * 1e9]
    return max(later) / 1e9 if later and 2 * len(later) >= len(ends) else 0.0


def without_work(case: Case) -> tuple[Unresponsive, list[int]] | None:
    """Return the coordinator that answers nobody, and the workers that get no work for that reason.

    Engines in lockstep begin a step together: the one with a request asks the coordinator to wake
    the others. So other ranks wait, and only for workers whose engines wait for work themselves.
    """
    found = (one for one in unresponsive(case) if one.process.details.get("role") == COORDINATOR)
    coordinator = next(found, None)
    if coordinator is None:
        return None
    seen = {} if case.run.snapshot is None else read_motions(case.run.snapshot)
    ends = [*case.waits.ends]
    if not case.waits.pending_calls and any(one.is_waiting for one in seen.values()):
        ends = [number for number, one in seen.items() if not one.is_waiting]
    rest = all(_rests(case, number, seen.get(number)) for number in ends)
    return (coordinator, sorted(ends)) if ends and rest else None


def _rests(case: Case, number: int, seen: Motion | None) -> bool:
    """Return whether a worker waits for work, and its engine does, as far as it is known."""
    rank = case.run.by_rank.get(number)
    if rank is None or not rank.activities:
        return seen is not None and seen.waits == "queue"
    engine = next((one for one in case.run.others if _sends_work_to(one, rank)), rank)
    return is_idle(rank) and lasting(engine, INPUT) is not None


def _sends_work_to(process: Rank, rank: Rank) -> bool:
    label = process.labels.get("engine")
    return label is not None and rank.labels.get("engine") == label


def place_of(run: Run, process: Rank) -> str:
    """Return where a process snapshot shows a server, to follow a clause; empty without it."""
    seen = [] if run.snapshot is None else read_servers(run.snapshot)
    at = [one for one in seen if one.worker.pid == process.pid and one.frames]
    return Unheard.IS_AT.of(at[0].text) if at else ""
