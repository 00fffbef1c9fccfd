"""Requests that wait: for a scheduler, for a process that answers nobody, or for an answer.

Of an engine without a record, stacks show whether it rests, and whether its steps have tokens. One
whose scheduler admits none of its requests sends its workers one step without tokens after the
other. These stacks move, and nothing is done: no worker comes to the model. After such a step the
engine sleeps for a moment, which it does only while it has requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import Motion, Sample, read_motions, read_servers, sample_of
from ncclscope.engine.processes.requests import awaits_requests, is_of_workers
from ncclscope.engine.records import Records, silent_seconds
from ncclscope.engine.waits.engine_steps import awaits_input, is_idle, schedules_itself
from ncclscope.engine.waits.noted import lasting, seconds_of
from ncclscope.model import Rank, Run
from ncclscope.model.activities import INPUT, LOOP, PAUSED, REQUESTS, UNSCHEDULED
from ncclscope.model.metadata import COORDINATOR, FRONTEND, SERVICE
from ncclscope.model.snapshot import Snapshot, Worker
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
    rest = [(seconds_of(one, INPUT) or 0.0) if awaits_input(one) else 0.0 for one in engines]
    served = {one.labels.get("engine") for one in engines}
    is_known = not run.missing and all(one.labels.get("engine") in served for one in run.ranks)
    idle = all(is_idle(one) or one in engines for one in run.ranks)
    if count and is_known and idle and min(rest, default=0.0) >= case.live_stall_seconds:
        return count, min(seconds, min(rest)), engines
    return 0, 0.0, []


_MODEL = re.compile(
    r"(?:^|/)(?:vllm/(?:model_executor|models|compilation|v1/(?:attention|sample|spec_decode))/|"
    r"torch/(?:nn/modules/|_ops\.py|fx/graph_module|cuda/(?:graphs|streams)))|"
    r"model_runner\.py (?:_prepare_inputs|_model_forward|_sample|sample_tokens|get_output|"
    r"_bookkeeping_sync|_dummy_run)$"
)
"""Files and functions that a step runs only if it has tokens."""
_AFTER_STEP = re.compile(r"(?:^|/)vllm/v1/engine/core\.py _process_engine_step$")
"""Where an engine sleeps that has requests, and that has scheduled no token."""
_LOOP = "run_busy_loop"
_WITHOUT_TOKENS = 2
"""Samples in that sleep, from which on its requests are known to be left out again and again. They
have to be most: an engine of a pipeline sleeps after a step, too, while all requests are at work.
"""


@dataclass(frozen=True)
class Stepping:
    """An engine without a record that was not seen to wait for requests.

    Attributes:
        pid: The engine core.
        samples: How many samples show it.
        without_tokens: Those that show it after a step without tokens.
    """

    pid: int
    samples: int
    without_tokens: int

    @property
    def schedules_nothing(self) -> bool:
        """Whether it is known to have requests, and to schedule none of their tokens."""
        return self.without_tokens >= max(_WITHOUT_TOKENS, self.samples / 2)


def stepping(run: Run) -> Iterator[Stepping]:
    """Yield the engines that wait for requests in no sample, where no worker runs its model.

    One that has not come to its loop starts up: it has no requests yet.
    """
    snapshot = run.snapshot
    if snapshot is None or _runs_model(snapshot):
        return
    recorded = {one.pid for one in run.others}
    for engine in snapshot.engines:
        samples = [sample_of(stacks) for stacks in engine.stacks if stacks.threads]
        starts = bool(samples) and not any(map(_is_in_loop, samples))
        rests = any(awaits_requests(one.waits, one.frames) for one in samples)
        if engine.pid not in recorded and not (starts or rests):
            yield Stepping(engine.pid, len(samples), sum(map(_is_after_step, samples)))


def without_engine(run: Run) -> list[int]:
    """Return the workers without a record that wait for work, where no engine of theirs was seen.

    It may be on another host, or a process of Ray. Whether it has requests is not known.
    """
    snapshot = run.snapshot
    if snapshot is None or snapshot.engines or run.others:
        return []
    motions = read_motions(snapshot).items()
    idle = [rank for rank, one in motions if one.waits == "queue" and is_of_workers(one.frames)]
    return [rank for rank in idle if not run.by_rank[rank].logs]


def _is_in_loop(engine: Sample) -> bool:
    return any(frame.name == _LOOP for frame in engine.frames)


def _is_after_step(engine: Sample) -> bool:
    last = engine.frames[-1]
    return bool(_AFTER_STEP.search(f"{last.file} {last.name}"))


def _runs_model(snapshot: Snapshot) -> bool:
    """Return whether a sample shows a worker, in whatever thread, at what a step with tokens does.

    A worker in a collective is in the model as well.
    """
    stacks = [each for worker in snapshot.workers for each in worker.stacks if each.threads]
    if any(sample_of(each).op for each in stacks):
        return True
    frames = (frame for each in stacks for thread in each.threads for frame in thread.frames)
    return any(_MODEL.search(f"{frame.file} {frame.name}") for frame in frames)
